// What magneto/_export asks of the core, beside the capture.
#include <Python.h>

#include "api/bindings.h"
#include "graph/nesting.h"
#include "python/ref.h"
#include "python/text.h"

namespace magneto {
namespace {

std::vector<int32_t> indices_in(PyObject* list) {
  const Ref items = checked(PySequence_Fast(list, "indices"));
  std::vector<int32_t> indices;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    indices.push_back(static_cast<int32_t>(PyLong_AsLong(PySequence_Fast_GET_ITEM(items.get(), i))));
    if (PyErr_Occurred()) throw PythonError{};
  }
  return indices;
}

std::vector<std::string> names_in(PyObject* list) {
  const Ref items = checked(PySequence_Fast(list, "names"));
  std::vector<std::string> names;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    names.emplace_back(text_argument(PySequence_Fast_GET_ITEM(items.get(), i)));
  }
  return names;
}

template <typename Items, typename Make>
Ref list_from(const Items& items, Make make) {
  Ref list = checked(PyList_New(0));
  for (const auto& item : items) {
    if (PyList_Append(list.get(), checked(make(item)).get()) < 0) throw PythonError{};
  }
  return list;
}

/// (key, parent, [(node, part)], inputs, outputs)
PyObject* part_object(const graph::Part& part) {
  const auto index = [](int32_t number) { return PyLong_FromLong(number); };
  const Ref items =
      list_from(part.items, [](const graph::PartItem& item) { return Py_BuildValue("(ii)", item.node, item.part); });
  return Py_BuildValue("(siOOO)", part.key.c_str(), part.parent, items.get(), list_from(part.inputs, index).get(),
                       list_from(part.outputs, index).get());
}

PyObject* nest_calls(PyObject*, PyObject* nodes) {
  return guarded([&] {
    const Ref rows = checked(PySequence_Fast(nodes, "nodes"));
    std::vector<graph::FlatNode> flat;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(rows.get()); ++i) {
      PyObject *calls, *uses;
      if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(rows.get(), i), "OO", &calls, &uses)) throw PythonError{};
      flat.push_back({.calls = names_in(calls), .uses = indices_in(uses)});
    }
    return list_from(graph::nest(flat), part_object).release();
  });
}

}  // namespace

PyMethodDef export_methods[] = {
    {"nest_calls", nest_calls, METH_O, "nest_calls(nodes): the calls of modules that a flat graph was."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
