#include "capture/calls/native_functions.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <vector>

#include "capture/calls/calls.h"
#include "capture/calls/native_mode.h"
#include "capture/interpreter/errors.h"
#include "capture/numbers/numbers.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/modules.h"
#include "capture/world/world.h"
#include "python/abi/private.h"
#include "python/bytecode/code.h"
#include "support/tensor_object.h"

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
    keep_forever(dict);  // of code that `exec` ran it may be gone before the code is
    add_once(names.entries, {dict, name});
    if (PyFunction_Check(found) && PyFunction_GET_GLOBALS(found) == globals) read_names(found, names, seen);
  }
}

}  // namespace

void guard_native_function(Capture& capture, PyObject* function) {
  static auto* known = new std::unordered_map<PyObject*, NamesRead>;  // by code, which the map keeps alive
  if (const guards::Source* source = capture.world.source_of(function)) capture.guards.function(source, function);
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
  auto* tensor = reinterpret_cast<PyTypeObject*>(tensor_class());
  for (PyObject* name : names->second.methods) {
    if (lookup_in_type(tensor, name)) capture.attributes.type_lookup(tensor, name);
  }
}

namespace {

/// The dict's keys and the objects under them.
void guard_entries(Capture& capture, PyObject* dict) {
  const guards::Source* source = capture.sources.constant(dict);
  std::vector<PyObject*> keys;
  PyObject *key, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(dict, &position, &key, &value)) {
    keys.push_back(key);
    capture.guards.identity(capture.sources.dict_item(source, key), value);
  }
  capture.guards.dict_keys(source, Py_TYPE(dict), keys);
}

/// A singledispatch function is registered for an abstract base class: which classes are of it, may change.
bool has_abstract_key(PyObject* registry) {
  PyObject* key;
  Py_ssize_t position = 0;
  while (PyDict_Next(registry, &position, &key, nullptr)) {
    if (PyType_Check(key) && !PyType_CheckExact(key)) return true;
  }
  return false;
}

/// What such a function reads of an argument: inspect.signature the facts of a function, dataclasses.fields its class.
void guard_argument(Capture& capture, PyObject* arg, bool members) {
  if (PyFunction_Check(arg)) {  // inspect.signature looks for a better one there
    capture.attributes.lookup_attr(arg, MAGNETO_STR("__wrapped__"));
    capture.attributes.lookup_attr(arg, MAGNETO_STR("__signature__"));
    for (PyObject* name :
         {MAGNETO_STR("__defaults__"), MAGNETO_STR("__kwdefaults__"), MAGNETO_STR("__annotations__")}) {
      if (Ref fact = capture.attributes.function_fact(arg, name)) capture.containers.resolve_deep(fact.get());
    }
  }
  PyTypeObject* type = PyType_Check(arg) ? reinterpret_cast<PyTypeObject*>(arg) : Py_TYPE(arg);
  PyObject* fields = capture.attributes.type_lookup(type, MAGNETO_STR("__dataclass_fields__"));
  if (fields && members) guard_entries(capture, fields);
}

}  // namespace

Ref Calls::run_native_function(PyObject* function, const CallArgs& args, bool members) {
  for (PyObject* arg : args.values) guard_argument(c, arg, members);
  // What such a function keeps in dicts of its closure (the registry of a singledispatch function) is guarded.
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i) {
    PyObject* contents = PyCell_GET(PyTuple_GET_ITEM(closure, i));
    if (!contents || !PyDict_CheckExact(contents)) continue;
    c.containers.resolve(c.world.wrap(contents, c.sources.constant(contents)).get());
    if (has_abstract_key(contents)) c.guards.abc_registrations();
  }
  const std::string module(module_of(PyFunction_GET_GLOBALS(function)));
  std::vector<Ref> resolved;
  std::vector<PyObject*> values;
  for (PyObject* arg : args.values) {
    resolved.push_back(c.containers.resolve_deep(c.numbers.known(arg).get()));
    PyObject* value = resolved.back().get();
    // Of a dataclass (a ModelOutput, which is a dict) its class is read, and none of its items.
    const bool of_class = is_derived_container(value) && PyObject_HasAttrString(value, "__dataclass_fields__") == 1;
    if (!of_class) c.containers.refuse_opaque(value, 8);
    // An inspect.Signature: its methods read it.
    if (is_python_class(Py_TYPE(arg)) && module_of(Py_TYPE(arg)) == module) c.world.pinned(arg);
    values.push_back(value);
  }
  Ref result;
  {
    const NativeScope scope(c.mode);
    c.mode.native_args = values;
    result = Ref::steal(PyObject_Vectorcall(function, values.data(), args.positional(), args.kwnames));
  }
  c.errors.check_sticky();
  c.torch.check_refusal();
  if (!result) throw PythonError{};
  if (closure && PyFunction_Check(result.get())) return c.world.wrap(result.get(), c.sources.constant(result.get()));
  // What others hold as well was there before, as what typing.get_origin and get_args find in an alias.
  const bool shared = Py_REFCNT(result.get()) > 1 && !c.world.is_outside(result.get()) &&
                      std::ranges::find(values, result.get()) == values.end();
  const bool part = PyTuple_CheckExact(result.get())
                        ? PyTuple_GET_SIZE(result.get()) > 0 && !members
                        : is_python_class(Py_TYPE(result.get())) && module_of(Py_TYPE(result.get())) == module;
  if (shared && part) return c.world.wrap(result.get(), c.sources.constant(result.get()));
  if (members) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result.get()); ++i) {
      PyObject* item = PyTuple_GET_ITEM(result.get(), i);
      c.world.wrap(item, c.sources.constant(item));
    }
  }
  return result;
}

}  // namespace magneto::capture
