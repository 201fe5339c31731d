// What tests reach of the partition.
#include "api/bindings.h"
#include "autograd/min_cut.h"
#include "autograd/partition.h"
#include "graph/aliases.h"
#include "lower/fused.h"
#include "python/ref.h"
#include "python/text.h"

namespace magneto {
namespace {

/// (nodes, [(from, to, capacity)...]): the nodes on the sink's side of a cut of least capacity between the first node
/// and the last; a capacity of -1 is infinite.
PyObject* min_cut(PyObject*, PyObject* args) {
  Py_ssize_t nodes;
  PyObject* edges;
  if (!PyArg_ParseTuple(args, "nO!", &nodes, &PyList_Type, &edges)) return nullptr;
  return guarded([&]() -> PyObject* {
    autograd::Network network(static_cast<size_t>(nodes));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(edges); ++i) {
      Py_ssize_t from, to;
      long long capacity;
      if (!PyArg_ParseTuple(PyList_GET_ITEM(edges, i), "nnL", &from, &to, &capacity)) throw PythonError{};
      network.connect(static_cast<size_t>(from), static_cast<size_t>(to),
                      capacity < 0 ? autograd::Network::kInfinite : capacity);
    }
    const auto side = network.sink_side(0, static_cast<size_t>(nodes) - 1, 1'000'000);
    Ref list = checked(PyList_New(0));
    for (size_t i = 0; side && i < side->size(); ++i) {
      if ((*side)[i] && PyList_Append(list.get(), checked(PyLong_FromSize_t(i)).get()) < 0) throw PythonError{};
    }
    return list.release();
  });
}

/// (text, operators of the forward, recompute, budget): the values of a joint graph in text form that are saved for the
/// operators behind the forward's, and bytes, ours and eager's.
PyObject* partition(PyObject*, PyObject* args) {
  PyObject* text;
  Py_ssize_t forward;
  int recompute;
  double budget;
  if (!PyArg_ParseTuple(args, "Onpd", &text, &forward, &recompute, &budget)) return nullptr;
  return guarded([&]() -> PyObject* {
    graph::Graph joint = graph::parse(text_argument(text));
    const autograd::JointRange range = {static_cast<size_t>(forward), static_cast<size_t>(forward),
                                        joint.aten_nodes.size()};
    std::vector<graph::ValueId> reads;
    for (size_t i = range.begin; i < range.end; ++i) {
      graph::for_each_operand(joint.aten_nodes[i], [&](graph::ValueId id) {
        const graph::Value& value = joint.values[id];
        const bool is_tangent = value.name.starts_with("tangents");
        if (value.producer < static_cast<int32_t>(range.forward) && !is_tangent) reads.push_back(id);
      });
    }
    const autograd::PartitionWay way = {
        .recompute = recompute != 0, .memory_budget = budget, .is_fused = lower::is_fused};
    const autograd::Partition found = autograd::partition(joint, range, reads, way);
    Ref saved = checked(PyList_New(0));
    for (size_t id = 0; id < found.saved.size(); ++id) {
      if (found.saved[id] && PyList_Append(saved.get(), checked(PyLong_FromSize_t(id)).get()) < 0) throw PythonError{};
    }
    return checked(Py_BuildValue("(OLL)", saved.get(), static_cast<long long>(found.bytes),
                                 static_cast<long long>(found.eager_bytes)))
        .release();
  });
}

}  // namespace

PyMethodDef autograd_test_methods[] = {
    {"min_cut", min_cut, METH_VARARGS, "The sink's side of a cut of least capacity."},
    {"partition", partition, METH_VARARGS, "What a joint graph in text form saves for its backward."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
