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

/// A library's own, and none that it has made for the class.
bool is_shared(PyObject* function) {
  const std::string_view module = module_of(PyFunction_GET_GLOBALS(function));
  const std::string_view name = PyUnicode_AsUTF8(reinterpret_cast<PyFunctionObject*>(function)->func_qualname);
  return (is_class_library(module) || module == "functools") && name.find("<locals>") == std::string_view::npos;
}

/// A default value, or what `dataclasses.field` makes of one, that may be printed while the class is made, as
/// inspect.signature does.
bool can_be_written_down(PyObject* value) {
  static constinit Imported field("dataclasses", "Field");
  Ref given = Py_TYPE(value) == field.type() ? checked(PyObject_GetAttrString(value, "default")) : Ref::borrow(value);
  if (is_tensor(given.get()) || is_unknown_number(given.get()) || is_symbolic_string(given.get())) return false;
  return !is_python_class(Py_TYPE(given.get())) || is_class_library(module_of(Py_TYPE(given.get()))) ||
         module_of(Py_TYPE(given.get())) == "dataclasses" || is_identity_constant(given.get());
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
  body.body.names = Ref::borrow(names);
  body.body.entries = checked(PyDict_New());
  body.storage.assign(info.nlocals + info.stack_size + 1, nullptr);
  body.slots = body.storage.data();
  if (!bind_arguments(function, nullptr, 0, nullptr, body.slots)) refuse("whose body can't be called");
  c.frames.run(body);
  return body.body.entries;
}

/// What code that is not interpreted looks at when the class is made: values of an enumeration.
void MadeClasses::check_values(PyObject* names, PyTypeObject* meta) {
  const bool enumeration = is_enumeration(meta);
  PyObject *name, *value;
  for (Py_ssize_t position = 0; PyDict_Next(names, &position, &name, &value);) {
    if (!PyUnicode_Check(name)) refuse("with a name that is no text");
    if (!enumeration) continue;
    static constinit Imported automatic("enum", "auto");
    const bool function = PyFunction_Check(value) || is_wrapper(value);
    if (function && is_hook_of_enumeration(name)) refuse("of an enumeration that makes its members in its own way");
    const bool simple = function || is_constant_key(value) || Py_TYPE(value) == automatic.type() ||
                        PyUnicode_CompareWithASCIIString(name, "__annotations__") == 0;
    if (!simple) refuse("of an enumeration with a value that is no constant");
  }
}

/// The class of a statement, by a metaclass of a library that runs no code of the program.
Ref MadeClasses::make_natively(const Statement& statement, PyObject* names, Ref entries) {
  static constinit Imported finish("magneto._classes", "finish_class");
  const auto [meta, name, bases, resolved, keywords] = statement;
  auto* const metaclass = reinterpret_cast<PyTypeObject*>(meta);
  check_values(entries.get(), metaclass);
  PyObject *key, *value;
  for (Py_ssize_t position = 0; PyDict_Next(keywords, &position, &key, &value);) {
    if (!is_scalar(value) && !PyType_Check(value)) refuse("with a keyword that is no constant");
  }
  for (Py_ssize_t position = 0; metaclass != &PyType_Type && PyDict_Next(names, &position, &key, &value);) {
    if (is_unknown_number(value)) refuse("with a number that differs from run to run");  // its code reads what it finds
  }
  Ref cls = run_library([&] {
    return PyObject_CallFunctionObjArgs(finish.get(), meta, name, bases, resolved, keywords, names, nullptr);
  });
  if (!PyType_Check(cls.get())) refuse("that makes no class");
  classes_[cls.get()] = {Ref::borrow(name), Ref::borrow(bases), Ref::borrow(keywords), std::move(entries), {}, {}};
  note(cls.get());
  return cls;
}

void MadeClasses::check_bases(PyTypeObject* metaclass, PyObject* bases) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bases); ++i) {
    PyObject* base = PyTuple_GET_ITEM(bases, i);
    if (!PyType_Check(base)) refuse("with a base that is no class");
    auto* type = reinterpret_cast<PyTypeObject*>(base);
    if (is_enumeration(metaclass) && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) &&
        !is_class_library(module_of(type))) {
      refuse("of an enumeration with a base of the program");
    }
    if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(tensor_class()))) refuse("of tensors");
    if (is_class(type)) {
      guard_bases(type);
    } else if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
      c.guards.bases(type);
    }
  }
}

Ref MadeClasses::make(PyObject* name, PyObject* bases, PyObject* keywords, PyObject* function) {
  static constinit Imported find_parts("magneto._classes", "class_parts");
  const Ref parts =
      run_library([&] { return PyObject_CallFunctionObjArgs(find_parts.get(), bases, keywords, nullptr); });
  PyObject* const meta = PyTuple_GET_ITEM(parts.get(), 0);
  if (!PyType_Check(meta)) refuse("with a metaclass that is no class");
  const Statement statement{meta, name, bases, PyTuple_GET_ITEM(parts.get(), 1), keywords};
  auto* const metaclass = reinterpret_cast<PyTypeObject*>(meta);
  check_bases(metaclass, statement.resolved);
  const Ref names = prepare(statement);
  Ref entries = run_body(function, names.get());
  if (is_of_class_library(metaclass) && !has_hooks(statement.resolved, entries.get())) {
    return make_natively(statement, names.get(), std::move(entries));
  }
  return make_by_program(statement, names.get());
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
        PyType_Check(base) || (PyFunction_Check(base) && is_class_library(module_of(PyFunction_GET_GLOBALS(base))));
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
      run_library([&] { return PyObject_Vectorcall(function, args.values.data(), args.values.size(), nullptr); });
  if (result.get() != cls) {
    c.side_exit(BreakReason::OpaqueCall, "call of " + callable_name(function) + ", which makes another class");
  }
  note_step(cls, function, {args.values.begin() + 1, args.values.end()});
  return result;
}

void MadeClasses::note_step(PyObject* cls, PyObject* function, const std::vector<PyObject*>& args) {
  MadeClass::Step step{Ref::borrow(function), {}};
  for (PyObject* arg : args) step.args.push_back(Ref::borrow(arg));
  classes_.at(cls).steps.push_back(std::move(step));
  note(cls);
}

void MadeClasses::write(PyObject* cls, PyObject* name, PyObject* value) {
  static constinit Imported set("builtins", "setattr"), remove("builtins", "delattr");
  static constinit Imported set_plainly("builtins", "type.__setattr__"), remove_plainly("builtins", "type.__delattr__");
  const bool plain = !is_class_library(module_of(Py_TYPE(cls)));  // a method of its metaclass has been interpreted
  if (value && is_python_class(Py_TYPE(value)) && !is_tensor(value))
    c.attributes.type_lookup(Py_TYPE(value), "__set__");
  const int done = plain ? PyType_Type.tp_setattro(cls, name, value) : PyObject_SetAttr(cls, name, value);
  if (done < 0) throw PythonError{};
  Imported& function = plain ? (value ? set_plainly : remove_plainly) : (value ? set : remove);
  MadeClass::Step step{Ref::borrow(function.get()), {Ref::borrow(name)}};
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
  return run_library([&] {
    return PyObject_Vectorcall(reinterpret_cast<PyObject*>(type), args.values.data(), args.positional(), args.kwnames);
  });
}

}  // namespace magneto::capture
