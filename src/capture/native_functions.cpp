#include "capture/native_functions.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <vector>

#include "python/code.h"

namespace magneto::capture {

namespace {

/// Entries of modules' namespaces, and names of methods, in the order of the code that reads them.
struct NamesRead {
  std::vector<std::pair<PyObject*, PyObject*>> entries;
  std::vector<PyObject*> methods;
};

template <class T>
void add_once(std::vector<T>& items, const T& item) {
  if (std::ranges::find(items, item) == items.end()) items.push_back(item);
}

/// Functions, modules and classes; what else a module keeps may change with each call.
bool is_definition(PyObject* object) {
  return PyFunction_Check(object) || PyModule_Check(object) || is_identity_constant(object);
}

PyObject* find_definition(PyObject* namespace_dict, PyObject* name) {
  PyObject* found = PyDict_GetItemWithError(namespace_dict, name);
  return found && is_definition(found) ? found : nullptr;
}

void read_names(PyObject* function, NamesRead& names, std::set<PyObject*>& seen) {
  if (!seen.insert(PyFunction_GET_CODE(function)).second) return;
  const CodeInfo& info = decode(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function)));
  PyObject* globals = PyFunction_GET_GLOBALS(function);
  PyObject* module = nullptr;  // the one on top of the stack
  for (const Instr& instr : info.instrs) {
    const bool attribute = instr.op == Op::LOAD_ATTR || instr.op == Op::LOAD_METHOD;
    if (instr.op != Op::LOAD_GLOBAL && !attribute) {
      module = nullptr;
      continue;
    }
    PyObject* name = PyTuple_GET_ITEM(info.names.get(), attribute ? instr.arg : instr.arg >> 1);
    if (attribute && !module) {
      add_once(names.methods, name);
      continue;
    }
    PyObject* dict = attribute ? PyModule_GetDict(module) : globals;
    PyObject* found = find_definition(dict, name);
    module = found && PyModule_Check(found) ? found : nullptr;
    if (!found) continue;
    add_once(names.entries, {dict, name});
    if (PyFunction_Check(found) && PyFunction_GET_GLOBALS(found) == globals) read_names(found, names, seen);
  }
}

}  // namespace

void guard_native_function(Capture& capture, PyObject* function) {
  static auto* known = new std::unordered_map<PyObject*, NamesRead>;  // by code, which the map keeps alive
  if (const guards::Source* source = capture.source_of(function)) capture.guards.function(source, function);
  const auto [names, added] = known->try_emplace(PyFunction_GET_CODE(function));
  if (added) {
    keep_forever(names->first);
    std::set<PyObject*> seen;
    read_names(function, names->second, seen);
  }
  for (const auto& [dict, name] : names->second.entries) {
    if (PyObject* found = find_definition(dict, name)) {
      capture.guards.identity(capture.sources.dict_item(capture.sources.constant(dict), name), found);
    }
  }
  auto* tensor = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  for (PyObject* name : names->second.methods) {
    if (_PyType_Lookup(tensor, name)) capture.type_lookup(tensor, name);
  }
}

}  // namespace magneto::capture
