#include "capture/calls/made_classes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "capture/calls/calls.h"
#include "capture/calls/native_functions.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/frames.h"
#include "capture/numbers/numbers.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/modules.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "python/abi/frame.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/bind.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// Their metaclasses and hooks run no code of the program, or what check_values has found harmless.
bool is_library(std::string_view module) {
  constexpr std::string_view known[] = {"builtins", "abc", "enum", "typing", "torch.autograd.function"};
  return std::ranges::find(known, module) != std::end(known);
}

/// The module of the function that a name in a class stands for; "builtins" for C code.
std::string_view module_of_hook(PyObject* hook) {
  if (hook && Py_TYPE(hook) == &PyClassMethod_Type) hook = functions_of_wrapper(hook).front();
  return hook && PyFunction_Check(hook) ? module_of(PyFunction_GET_GLOBALS(hook)) : "builtins";
}

/// A library's own, and none that it has made for the class.
bool is_shared(PyObject* function) {
  const std::string_view module = module_of(PyFunction_GET_GLOBALS(function));
  const std::string_view name = PyUnicode_AsUTF8(reinterpret_cast<PyFunctionObject*>(function)->func_qualname);
  return (is_library(module) || module == "functools") && name.find("<locals>") == std::string_view::npos;
}

/// A default value, or what `dataclasses.field` makes of one, that may be printed while the class is made, as
/// inspect.signature does.
bool can_be_written_down(PyObject* value) {
  static constinit Imported field("dataclasses", "Field");
  Ref given = Py_TYPE(value) == field.type() ? checked(PyObject_GetAttrString(value, "default")) : Ref::borrow(value);
  if (is_tensor(given.get()) || is_unknown_number(given.get()) || is_symbolic_string(given.get())) return false;
  return !is_python_class(Py_TYPE(given.get())) || is_library(module_of(Py_TYPE(given.get()))) ||
         module_of(Py_TYPE(given.get())) == "dataclasses" || is_identity_constant(given.get());
}

/// Python code of a library runs by itself: nothing of it is the program's.
template <class Run>
Ref run_library(Capture& capture, const Run& run) {
  Ref result;
  {
    const NativeScope scope(capture.mode);
    capture.mode.callbacks_allowed = false;
    capture.mode.plain = true;
    result = Ref::steal(run());
  }
  capture.errors.check_sticky();
  capture.torch.check_refusal();
  if (!result) throw PythonError{};
  return result;
}

bool is_enumeration(PyTypeObject* meta) {
  static constinit Imported type("enum", "EnumMeta");
  return PyType_IsSubtype(meta, type.type());
}

/// Python's enum calls such a function of an enumeration while it makes the class.
bool is_hook_of_enumeration(PyObject* name) {
  constexpr std::string_view hooks[] = {"__new__", "__init__", "_generate_next_value_", "_missing_"};
  return std::ranges::find(hooks, PyUnicode_AsUTF8(name)) != std::end(hooks);
}

}  // namespace

std::vector<PyObject*> functions_of_wrapper(PyObject* wrapper) {
  std::vector<PyObject*> functions;
  const bool property = Py_TYPE(wrapper) == &PyProperty_Type;
  static constexpr std::array kParts = {"fget", "fset", "fdel"};
  if (!property) return {Ref::steal(PyObject_GetAttrString(wrapper, "__func__")).get()};  // the wrapper keeps it alive
  for (const char* part : kParts) functions.push_back(Ref::steal(PyObject_GetAttrString(wrapper, part)).get());
  return functions;
}

void MadeClasses::refuse(const std::string& why) { c.side_exit(BreakReason::OpaqueCall, "a class statement, " + why); }

bool MadeClasses::is_wrapper(PyObject* object) const {
  PyTypeObject* const type = Py_TYPE(object);
  return (type == &PyStaticMethod_Type || type == &PyClassMethod_Type || type == &PyProperty_Type) &&
         !c.world.is_outside(object);
}

bool MadeClasses::is_member(PyObject* object) const {
  PyTypeObject* const type = Py_TYPE(object);
  return Py_TYPE(type) != &PyType_Type && is_enumeration(Py_TYPE(type)) && is_class(type);
}

void MadeClasses::guard_bases(PyTypeObject* type) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    if (PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE) && !is_class(base)) c.guards.bases(base);
  }
}

/// An object that look-ups in a class will find: what the segment has made is read as it is.
void MadeClasses::note_value(PyObject* value) {
  if (is_scalar(value) || c.world.is_outside(value) || c.overlays.class_values.contains(value)) return;
  if (PyFunction_Check(value) && is_shared(value)) return;
  c.world.keep(Ref::borrow(value));
  if (is_identity_constant(value) && !is_any(value)) return;
  c.overlays.class_values.insert(value);
  if (!is_wrapper(value)) return;
  for (PyObject* function : functions_of_wrapper(value)) {
    if (function) note_value(function);
  }
}

void MadeClasses::note(PyObject* cls) {
  c.world.keep(Ref::borrow(cls));
  c.overlays.class_values.insert(cls);
  PyObject* value;
  for (Py_ssize_t position = 0;
       PyDict_Next(type_dict(reinterpret_cast<PyTypeObject*>(cls)), &position, nullptr, &value);)
    note_value(value);
}

/// The body, interpreted with `names` as what it reads and sets.
Ref MadeClasses::run_body(PyObject* function, PyObject* names) {
  const CodeInfo& info = decode(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function)));
  InterpFrame body;
  body.info = &info;
  body.function = Ref::borrow(function);
  body.globals = PyFunction_GET_GLOBALS(function);
  body.builtins = reinterpret_cast<PyFunctionObject*>(function)->func_builtins;
  body.names = Ref::borrow(names);
  body.entries = checked(PyDict_New());
  body.storage.assign(info.nlocals + info.stack_size + 1, nullptr);
  body.slots = body.storage.data();
  if (!bind_arguments(function, nullptr, 0, nullptr, body.slots)) refuse("whose body can't be called");
  c.frames.run(body);
  return body.entries;
}

/// What code that is not interpreted looks at when the class is made: hooks of descriptors, values of an enumeration.
void MadeClasses::check_values(PyObject* names, PyTypeObject* meta) {
  const bool enumeration = is_enumeration(meta);
  PyObject *name, *value;
  for (Py_ssize_t position = 0; PyDict_Next(names, &position, &name, &value);) {
    if (!PyUnicode_Check(name)) refuse("with a name that is no text");
    if (is_python_class(Py_TYPE(value)) && !is_tensor(value)) {
      const std::string_view module = module_of_hook(c.attributes.type_lookup(Py_TYPE(value), "__set_name__"));
      if (!is_library(module) && module != "dataclasses") refuse("with a descriptor that is told its name");
    }
    if (!enumeration) continue;
    static constinit Imported automatic("enum", "auto");
    const bool function = PyFunction_Check(value) || is_wrapper(value);
    if (function && is_hook_of_enumeration(name)) refuse("of an enumeration that makes its members in its own way");
    const bool simple = function || is_constant_key(value) || Py_TYPE(value) == automatic.type() ||
                        PyUnicode_CompareWithASCIIString(name, "__annotations__") == 0;
    if (!simple) refuse("of an enumeration with a value that is no constant");
  }
}

Ref MadeClasses::make(PyObject* name, PyObject* bases, PyObject* keywords, PyObject* function) {
  static constinit Imported prepare("magneto._polyfills", "prepare_class"),
      finish("magneto._polyfills", "finish_class");
  const Ref prepared =
      run_library(c, [&] { return PyObject_CallFunctionObjArgs(prepare.get(), name, bases, keywords, nullptr); });
  PyObject* const meta = PyTuple_GET_ITEM(prepared.get(), 0);
  PyObject* const names = PyTuple_GET_ITEM(prepared.get(), 1);
  PyObject* const resolved = PyTuple_GET_ITEM(prepared.get(), 2);
  PyTypeObject* const metaclass = reinterpret_cast<PyTypeObject*>(meta);
  if (!PyType_Check(meta)) refuse("with a metaclass that is no class");
  const bool made_by_type = metaclass == &PyType_Type;
  if ((!made_by_type && !is_library(module_of(metaclass))) || !PyDict_Check(names)) refuse("with its own metaclass");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(resolved); ++i) {
    PyObject* base = PyTuple_GET_ITEM(resolved, i);
    if (!PyType_Check(base)) refuse("with a base that is no class");
    auto* type = reinterpret_cast<PyTypeObject*>(base);
    if (!is_library(module_of_hook(c.attributes.type_lookup(type, "__init_subclass__")))) {
      refuse("with a base that has an __init_subclass__");
    }
    if (is_enumeration(metaclass) && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && !is_library(module_of(type))) {
      refuse("of an enumeration with a base of the program");
    }
    if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(tensor_class()))) refuse("of tensors");
    if (is_class(type)) {
      guard_bases(type);
    } else if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
      c.guards.bases(type);
    }
  }
  Ref entries = run_body(function, names);
  check_values(entries.get(), metaclass);
  if (!made_by_type) {  // its code reads what it finds
    PyObject *key, *value;
    for (Py_ssize_t position = 0; PyDict_Next(names, &position, &key, &value);) {
      if (is_unknown_number(value)) refuse("with a number that differs from run to run");
    }
  }
  Ref cls = run_library(c, [&] {
    return PyObject_CallFunctionObjArgs(finish.get(), meta, name, bases, resolved, keywords, names, nullptr);
  });
  if (!PyType_Check(cls.get())) refuse("that makes no class");
  classes_[cls.get()] = {Ref::borrow(name), Ref::borrow(bases), Ref::borrow(keywords), std::move(entries), {}};
  note(cls.get());
  return cls;
}

Ref MadeClasses::build(const CallArgs& args) {
  if (args.positional() < 2 || !PyFunction_Check(args.values[0]) || !PyUnicode_Check(args.values[1])) {
    c.side_exit(BreakReason::OpaqueCall, "call of builtins.__build_class__");
  }
  const NonResumable scope(c);
  Ref bases = checked(PyTuple_New(static_cast<Py_ssize_t>(args.positional()) - 2));
  for (size_t i = 2; i < args.positional(); ++i) {
    PyObject* base = args.values[i];
    const bool known =
        PyType_Check(base) || (PyFunction_Check(base) && is_library(module_of(PyFunction_GET_GLOBALS(base))));
    if (!known) {
      // list[int], Generic[T]: an alias that says what it stands for.
      const std::string_view module = module_of(Py_TYPE(base));
      if (Py_TYPE(base) != &Py_GenericAliasType && module != "typing") refuse("with a base that is no class");
      c.world.pinned(base);
    }
    PyTuple_SET_ITEM(bases.get(), i - 2, Py_NewRef(base));
  }
  Ref keywords = checked(PyDict_New());
  for (size_t i = 0; i < args.keywords(); ++i) {
    PyObject* value = args.values[args.positional() + i];
    if (!is_scalar(value) && !PyType_Check(value)) refuse("with a keyword that is no constant");
    if (PyDict_SetItem(keywords.get(), PyTuple_GET_ITEM(args.kwnames, i), value) < 0) throw PythonError{};
  }
  return make(args.values[1], bases.get(), keywords.get(), args.values[0]);
}

Ref MadeClasses::decorate(PyObject* function, const CallArgs& args) {
  if (args.values.empty() || !is_class(args.values[0])) return {};
  if (args.kwnames) c.side_exit(BreakReason::OpaqueCall, "call of " + callable_name(function) + " with keywords");
  PyObject* const cls = args.values[0];
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  c.attributes.type_lookup(type, "__dataclass_fields__");
  PyObject* value;
  for (Py_ssize_t position = 0; PyDict_Next(type_dict(type), &position, nullptr, &value);) {
    if (!can_be_written_down(value)) {
      c.side_exit(BreakReason::OpaqueCall, "call of " + callable_name(function) + " for a class that holds objects");
    }
  }
  guard_native_function(c, function);
  Ref result =
      run_library(c, [&] { return PyObject_Vectorcall(function, args.values.data(), args.values.size(), nullptr); });
  if (result.get() != cls) {
    c.side_exit(BreakReason::OpaqueCall, "call of " + callable_name(function) + ", which makes another class");
  }
  MadeClass::Step step{Ref::borrow(function), {}};
  for (size_t i = 1; i < args.values.size(); ++i) step.args.push_back(Ref::borrow(args.values[i]));
  classes_.at(cls).steps.push_back(std::move(step));
  note(cls);
  return result;
}

void MadeClasses::write(PyObject* cls, PyObject* name, PyObject* value) {
  static constinit Imported set("builtins", "setattr"), remove("builtins", "delattr");
  if (value && is_python_class(Py_TYPE(value)) && !is_tensor(value))
    c.attributes.type_lookup(Py_TYPE(value), "__set__");
  if ((value ? PyObject_SetAttr(cls, name, value) : PyObject_DelAttr(cls, name)) < 0) throw PythonError{};
  MadeClass::Step step{Ref::borrow(value ? set.get() : remove.get()), {Ref::borrow(name)}};
  if (value) {
    step.args.push_back(Ref::borrow(value));
    note_value(value);
  }
  classes_.at(cls).steps.push_back(std::move(step));
}

bool MadeClasses::closes_over_values(PyObject* cls) const {
  PyObject* value;
  for (Py_ssize_t position = 0; PyDict_Next(of(cls).entries.get(), &position, nullptr, &value);) {
    for (PyObject* function : is_wrapper(value) ? functions_of_wrapper(value) : std::vector<PyObject*>{value}) {
      PyObject* closure = function && PyFunction_Check(function) ? PyFunction_GET_CLOSURE(function) : nullptr;
      for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i) {
        PyObject* held = PyCell_GET(PyTuple_GET_ITEM(closure, i));
        if (held && held != cls && !is_scalar(held) && !(is_identity_constant(held) && !is_any(held))) return true;
      }
    }
  }
  return false;
}

void MadeClasses::forget() {
  static constinit Imported function("torch.autograd", "Function");
  for (const auto& [cls, made] : classes_) {
    auto* type = reinterpret_cast<PyTypeObject*>(cls);
    if (PyType_IsSubtype(type, function.type())) continue;  // a graph may have it, and calls it
    PyDict_Clear(type_dict(type));
    PyType_Modified(type);
  }
  classes_.clear();
}

Ref MadeClasses::make_wrapper(PyTypeObject* type, const CallArgs& args) {
  if (type != &PyStaticMethod_Type && type != &PyClassMethod_Type && type != &PyProperty_Type) return {};
  for (PyObject* arg : args.values) {
    if (!PyFunction_Check(arg) && !is_scalar(arg)) {
      c.side_exit(BreakReason::OpaqueCall, std::string("a ") + type->tp_name + " of no function is made");
    }
  }
  return run_library(c, [&] {
    return PyObject_Vectorcall(reinterpret_cast<PyObject*>(type), args.values.data(), args.positional(), args.kwnames);
  });
}

}  // namespace magneto::capture
