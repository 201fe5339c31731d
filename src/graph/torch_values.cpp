#include "graph/torch_values.h"

#include "graph/gm.h"

namespace magneto::graph {
namespace {

/// A tuple as its exact type. Named tuples have `_make`; other subclasses take an iterable, as `torch.Size` does.
Ref with_type(Ref tuple, PyObject* type) {
  if (!type || type == reinterpret_cast<PyObject*>(&PyTuple_Type)) return tuple;
  Ref make = Ref::steal(PyObject_GetAttrString(type, "_make"));
  if (!make) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw PythonError{};
    PyErr_Clear();
    make = Ref::borrow(type);
  }
  return checked(PyObject_CallOneArg(make.get(), tuple.get()));
}

}  // namespace

Ref build_py_arg(const PyArg& arg, const std::function<Ref(ValueId)>& value,
                 const std::function<Ref(PyObject*)>& constant, const std::function<Ref(shapes::Expr)>& size,
                 const std::function<Ref(ValueId)>& number) {
  const auto item = [&](size_t i) { return build_py_arg(arg.items[i], value, constant, size, number); };
  const auto count = static_cast<Py_ssize_t>(arg.items.size());
  switch (arg.kind) {
    case PyArg::Kind::Value:
      return value(arg.value);
    case PyArg::Kind::Number:
      return number(arg.value);
    case PyArg::Kind::Const:
      return constant(arg.object ? arg.object.get() : Py_None);
    case PyArg::Kind::Size:
      return size(arg.size);
    case PyArg::Kind::Tuple: {
      Ref tuple = checked(PyTuple_New(count));
      for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple.get(), i, item(i).release());
      return with_type(std::move(tuple), arg.object.get());
    }
    case PyArg::Kind::List: {
      Ref list = checked(PyList_New(count));
      for (Py_ssize_t i = 0; i < count; ++i) PyList_SET_ITEM(list.get(), i, item(i).release());
      return list;
    }
    case PyArg::Kind::Dict: {
      Ref dict = checked(PyDict_New());
      for (Py_ssize_t i = 0; i < count; ++i) {
        if (PyDict_SetItem(dict.get(), PyTuple_GET_ITEM(arg.object.get(), i), item(i).get()) < 0) throw PythonError{};
      }
      return dict;
    }
    case PyArg::Kind::Slice:
      return checked(PySlice_New(item(0).get(), item(1).get(), item(2).get()));
    case PyArg::Kind::Region:
      return region_module(*arg.region);
  }
  Py_UNREACHABLE();
}

void for_each_value(const PyArg& arg, const std::function<void(ValueId)>& visit) {
  const bool tensor = arg.kind == PyArg::Kind::Value || arg.kind == PyArg::Kind::Number;
  if (tensor && arg.value != kNoValue) visit(arg.value);
  for (const PyArg& item : arg.items) for_each_value(item, visit);
}

std::vector<bool> values_used_by_torch(const Graph& graph) {
  std::vector<bool> used(graph.values.size(), false);
  const auto mark = [&](ValueId id) { used[id] = true; };
  for (const TorchNode& node : graph.torch_nodes) {
    for (const PyArg& arg : node.args) for_each_value(arg, mark);
    for (const auto& [name, arg] : node.kwargs) for_each_value(arg, mark);
  }
  for (const ValueId id : graph.outputs) {
    if (id != kNoValue) mark(id);
  }
  return used;
}

}  // namespace magneto::graph
