#include "testing/test_graphs.h"

#include <stdexcept>

#include "support/tensor_object.h"

namespace magneto::runtime {

using graph::Graph;
using graph::PyArg;
using graph::TorchNode;
using graph::ValueId;

namespace {

Ref fast(PyObject* object) { return checked(PySequence_Fast(object, "expected a sequence")); }
Py_ssize_t size(const Ref& sequence) { return PySequence_Fast_GET_SIZE(sequence.get()); }
PyObject* at(const Ref& sequence, Py_ssize_t i) { return PySequence_Fast_GET_ITEM(sequence.get(), i); }

std::string utf8(PyObject* text) {
  const char* chars = PyUnicode_AsUTF8(text);
  if (!chars) throw PythonError{};
  return chars;
}

long integer(PyObject* object) {
  const long value = PyLong_AsLong(object);
  if (value == -1 && PyErr_Occurred()) throw PythonError{};
  return value;
}

PyArg py_arg(PyObject* marker, PyObject* object) {
  PyArg arg;
  const auto add_items = [&](PyArg::Kind kind, PyObject* items) {
    arg.kind = kind;
    Ref sequence = fast(items);
    for (Py_ssize_t i = 0; i < size(sequence); ++i) arg.items.push_back(py_arg(marker, at(sequence, i)));
  };
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) == marker) {
    arg.kind = PyArg::Kind::Value;
    arg.value = static_cast<ValueId>(integer(checked(PyObject_GetAttrString(object, "id")).get()));
  } else if (PyTuple_Check(object)) {
    add_items(PyArg::Kind::Tuple, object);
    if (!PyTuple_CheckExact(object)) arg.object = Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(object)));
  } else if (PyList_Check(object)) {
    add_items(PyArg::Kind::List, object);
  } else if (PyDict_Check(object)) {
    add_items(PyArg::Kind::Dict, checked(PyDict_Values(object)).get());
    arg.object = checked(PySequence_Tuple(object));
  } else if (PySlice_Check(object)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(object);
    arg.kind = PyArg::Kind::Slice;
    for (PyObject* part : {slice->start, slice->stop, slice->step}) arg.items.push_back(py_arg(marker, part));
  } else {
    arg.object = Ref::borrow(object);
  }
  return arg;
}

TorchNode torch_node(PyObject* marker, PyObject* description, Graph& graph) {
  Ref parts = fast(description);
  if (size(parts) < 4) throw std::invalid_argument("a call is (target, args, kwargs, results[, file, line, function])");
  TorchNode node;
  node.target = Ref::borrow(at(parts, 0));
  const bool method = PyUnicode_Check(node.target.get());
  node.kind = method ? TorchNode::Kind::CallMethod : TorchNode::Kind::CallFunction;
  Ref args = fast(at(parts, 1));
  for (Py_ssize_t i = 0; i < size(args); ++i) node.args.push_back(py_arg(marker, at(args, i)));
  PyObject *key, *value;
  for (Py_ssize_t position = 0; PyDict_Next(at(parts, 2), &position, &key, &value);) {
    node.kwargs.emplace_back(utf8(key), py_arg(marker, value));
  }
  Ref results = fast(at(parts, 3));
  for (Py_ssize_t i = 0; i < size(results); ++i) {
    Ref result = fast(at(results, i));
    Ref path = fast(at(result, 0));
    graph::TorchResult entry;
    for (Py_ssize_t j = 0; j < size(path); ++j) entry.path.push_back(static_cast<int32_t>(integer(at(path, j))));
    entry.value = static_cast<ValueId>(integer(at(result, 1)));
    while (entry.value >= static_cast<ValueId>(graph.values.size())) graph.add_result({}, -1);
    node.results.push_back(std::move(entry));
  }
  if (size(parts) == 7) {
    node.file = utf8(at(parts, 4));
    node.line = static_cast<int32_t>(integer(at(parts, 5)));
    node.function = utf8(at(parts, 6));
  }
  return node;
}

const at::Tensor& tensor_of(PyObject* object) {
  if (!is_tensor_object(object)) throw std::invalid_argument("expected a tensor");
  return unpack_tensor(object);
}

}  // namespace

Graph torch_graph(PyObject* marker, PyObject* inputs, PyObject* constants, PyObject* calls, PyObject* outputs,
                  PyObject* mutated) {
  Graph graph;
  Ref input_list = fast(inputs);
  for (Py_ssize_t i = 0; i < size(input_list); ++i) {
    Ref input = fast(at(input_list, i));
    graph.add_input(utf8(at(input, 0)), graph::meta_of(tensor_of(at(input, 1))));
  }
  Ref constant_list = fast(constants);
  for (Py_ssize_t i = 0; i < size(constant_list); ++i) graph.add_constant(tensor_of(at(constant_list, i)));
  Ref call_list = fast(calls);
  for (Py_ssize_t i = 0; i < size(call_list); ++i) {
    graph.torch_nodes.push_back(torch_node(marker, at(call_list, i), graph));
  }
  Ref output_list = fast(outputs);
  for (Py_ssize_t i = 0; i < size(output_list); ++i) {
    graph.outputs.push_back(static_cast<ValueId>(integer(at(output_list, i))));
  }
  Ref mutated_list = fast(mutated);
  static const auto zero = c10::Dispatcher::singleton().findSchemaOrThrow("aten::zero_", "");
  for (Py_ssize_t i = 0; i < size(mutated_list); ++i) {
    const auto id = static_cast<ValueId>(integer(at(mutated_list, i)));
    graph.aten_nodes.push_back({zero, {id}, {id}, -1});
  }
  return graph;
}

}  // namespace magneto::runtime
