// isinstance and issubclass: what they read of classes is guarded, and a metaclass's own answer is interpreted.
#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "python/abi/private.h"
#include "python/imported.h"

namespace magneto::capture {

namespace {

bool is_union(PyObject* classes) { return std::string_view(Py_TYPE(classes)->tp_name) == "types.UnionType"; }

bool native_answer(int answer) {
  if (answer < 0) throw PythonError{};
  return answer != 0;
}

/// Of _abc._abc_instancecheck or _abc._abc_subclasscheck. A class that an abstract base class has once accepted stays
/// accepted; one that is refused may be registered later, there or at a class below.
bool abc_answer(Capture& capture, Imported& function, PyObject* cls, PyObject* asked) {
  Ref answer = checked(PyObject_CallFunctionObjArgs(function.get(), cls, sample_of(asked), nullptr));
  if (answer.get() != Py_True) capture.guards.abc_registrations();
  return answer.get() == Py_True;
}

constinit Imported abc_instance_check("_abc", "_abc_instancecheck");
constinit Imported abc_subclass_check("_abc", "_abc_subclasscheck");

/// What a metaclass's `hook` says in Python code; nothing: it has none.
std::optional<bool> ask_metaclass(Capture& capture, PyObject* cls, PyObject* asked, PyObject* hook, Imported& abc) {
  PyTypeObject* meta = Py_TYPE(cls);
  if (!PyType_HasFeature(meta, Py_TPFLAGS_HEAPTYPE)) return std::nullopt;
  PyObject* method = capture.attributes.type_lookup(meta, hook);
  if (!method || !PyFunction_Check(method)) return std::nullopt;
  static constinit Imported abc_meta("abc", "ABCMeta");
  if (lookup_in_type(abc_meta.type(), hook) == method) return abc_answer(capture, abc, cls, asked);
  Ref function = capture.world.wrap(method, capture.sources.constant(method));
  return capture.protocol.truth(capture.calls.call(function.get(), {cls, asked}).get());
}

void guard_bases(Capture& capture, PyTypeObject* type) {
  if (capture.calls.classes.is_class(type)) {
    capture.calls.classes.guard_bases(type);
  } else if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    capture.guards.bases(type);
  }
}

using Native = bool (*)(PyObject* object, PyObject* cls);

bool ask_isinstance(PyObject* object, PyObject* cls) { return native_answer(PyObject_IsInstance(object, cls)); }

/// Without asking the metaclass.
bool ask_type(PyObject* object, PyObject* cls) {
  static constinit Imported check("builtins", "type.__instancecheck__");
  return checked(PyObject_CallFunctionObjArgs(check.get(), cls, object, nullptr)).get() == Py_True;
}

/// By the classes that the object has; `native` decides where nothing is to be interpreted.
bool is_by_class(Capture& capture, PyObject* object, PyObject* cls, Native native) {
  PyTypeObject* type = Py_TYPE(object);
  guard_bases(capture, type);
  if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(cls))) return true;
  PyObject* const said = lookup_in_type(type, MAGNETO_STR("__class__"));
  if (!said || Py_TYPE(said) == &PyGetSetDescr_Type) return native(object, cls);
  Ref other = capture.attributes.lookup_attr(object, MAGNETO_STR("__class__"));  // an object that passes for another
  if (!other || !PyType_Check(other.get())) return false;
  guard_bases(capture, reinterpret_cast<PyTypeObject*>(other.get()));
  return PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(other.get()), reinterpret_cast<PyTypeObject*>(cls));
}

/// As PyObject_IsInstance. `value` may stand for something; only the program's own code may look at more than its type.
bool is_instance(Capture& capture, PyObject* value, PyObject* cls) {
  PyObject* const object = sample_of(value);
  PyTypeObject* type = Py_TYPE(object);
  if (!PyType_Check(cls) || has_own_getattr(type)) return native_answer(PyObject_IsInstance(object, cls));
  if (type == reinterpret_cast<PyTypeObject*>(cls)) return true;
  if (auto answer = ask_metaclass(capture, cls, value, MAGNETO_STR("__instancecheck__"), abc_instance_check)) {
    return *answer;
  }
  return is_by_class(capture, object, cls, ask_isinstance);
}

/// As PyObject_IsSubclass.
bool is_subclass(Capture& capture, PyObject* derived, PyObject* cls) {
  if (!PyType_Check(cls)) return native_answer(PyObject_IsSubclass(derived, cls));
  if (derived == cls && PyType_CheckExact(cls)) return true;
  if (auto answer = ask_metaclass(capture, cls, derived, MAGNETO_STR("__subclasscheck__"), abc_subclass_check)) {
    return *answer;
  }
  if (PyType_Check(derived)) guard_bases(capture, reinterpret_cast<PyTypeObject*>(derived));
  return native_answer(PyObject_IsSubclass(derived, cls));
}

/// The answer for any of the classes in nested tuples and unions.
template <typename Ask>
bool any_class(PyObject* classes, const Ask& ask) {
  if (is_union(classes)) {
    Ref parts = checked(PyObject_GetAttrString(classes, "__args__"));
    bool plain = true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts.get()); ++i) {
      plain &= PyType_Check(PyTuple_GET_ITEM(parts.get(), i)) != 0;
    }
    return plain ? any_class(parts.get(), ask) : ask(classes);
  }
  if (!PyTuple_Check(classes)) return ask(classes);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); ++i) {
    if (any_class(PyTuple_GET_ITEM(classes, i), ask)) return true;
  }
  return false;
}

Ref handle_isinstance(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "isinstance");
  Ref classes = capture.containers.resolve_deep(args.values[1]);
  PyObject* object = args.values[0];
  return boolean(any_class(classes.get(), [&](PyObject* cls) { return is_instance(capture, object, cls); }));
}

/// What metaclasses written in Python end with: super().__instancecheck__(instance).
Ref handle_type_instancecheck(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "__instancecheck__");
  return boolean(is_by_class(capture, sample_of(args.values[1]), args.values[0], ask_type));
}

Ref handle_issubclass(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "issubclass");
  Ref classes = capture.containers.resolve_deep(args.values[1]);
  PyObject* derived = args.values[0];
  return boolean(any_class(classes.get(), [&](PyObject* cls) { return is_subclass(capture, derived, cls); }));
}

Ref handle_abc_instancecheck(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "_abc_instancecheck");
  return boolean(abc_answer(capture, abc_instance_check, args.values[0], args.values[1]));
}

Ref handle_abc_subclasscheck(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "_abc_subclasscheck");
  return boolean(abc_answer(capture, abc_subclass_check, args.values[0], args.values[1]));
}

Ref handle_build_class(Capture& capture, const CallArgs& args) { return capture.calls.classes.build(args); }

Ref handle_type_new(Capture& capture, const CallArgs& args) { return capture.calls.classes.make_by_type(args); }

Ref handle_type_init(Capture& capture, const CallArgs& args) {
  check_count(CallArgs{{args.values.begin(), args.values.begin() + static_cast<ptrdiff_t>(args.positional())}}, 2, 4,
              "__init__");
  if (!capture.calls.classes.is_class(args.values[0])) {
    capture.side_exit(BreakReason::OpaqueCall, "call of type.__init__");
  }
  return Ref::borrow(Py_None);
}

/// As in a metaclass that has its own `__setattr__`.
Ref handle_type_setattr(Capture& capture, const CallArgs& args) {
  check_count(args, 3, 3, "__setattr__");
  if (!capture.calls.classes.is_class(args.values[0])) {
    capture.side_exit(BreakReason::OpaqueCall, "call of type.__setattr__");
  }
  capture.calls.classes.write(args.values[0], args.values[1], args.values[2]);
  return Ref::borrow(Py_None);
}

Ref handle_type_delattr(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "__delattr__");
  if (!capture.calls.classes.is_class(args.values[0])) {
    capture.side_exit(BreakReason::OpaqueCall, "call of type.__delattr__");
  }
  capture.calls.classes.write(args.values[0], args.values[1], nullptr);
  return Ref::borrow(Py_None);
}

/// object.__init_subclass__, called by that of a class of the program.
Ref handle_init_subclass(Capture&, const CallArgs& args) {
  if (args.values.size() > 1) {
    PyErr_Format(PyExc_TypeError,
                 args.kwnames ? "%s.__init_subclass__() takes no keyword arguments"
                              : "%s.__init_subclass__() takes no arguments (%zd given)",
                 reinterpret_cast<PyTypeObject*>(args.values[0])->tp_name, args.values.size() - 1);
    throw PythonError{};
  }
  return Ref::borrow(Py_None);
}

Ref handle_abc_init(Capture& capture, const CallArgs& args) { return capture.calls.classes.make_abstract(args); }

/// `x.setter(function)` of a property, `kPart` being the function's place among those of a property.
template <int kPart>
Ref handle_property_part(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "property");
  PyObject* const property = args.values[0];
  if (Py_TYPE(property) != &PyProperty_Type || capture.world.is_outside(property)) {
    capture.side_exit(BreakReason::OpaqueCall, "a property is made of one from outside");
  }
  const Ref text = checked(PyObject_GetAttrString(property, "__doc__"));
  CallArgs parts;
  for (PyObject* function : functions_of_wrapper(property)) parts.values.push_back(function);
  parts.values[kPart] = args.values[1];
  parts.values.push_back(text.get());
  return capture.calls.classes.make_wrapper(&PyProperty_Type, parts);
}

}  // namespace

std::span<const HandlerRow> class_handlers() {
  static constexpr HandlerRow rows[] = {
      {"builtins.__build_class__", handle_build_class},
      {"type.__new__", handle_type_new},
      {"type.__init__", handle_type_init},
      {"type.__setattr__", handle_type_setattr},
      {"type.__delattr__", handle_type_delattr},
      {"object.__init_subclass__", handle_init_subclass},
      {"_abc._abc_init", handle_abc_init},
      {"property.getter", handle_property_part<0>},
      {"property.setter", handle_property_part<1>},
      {"property.deleter", handle_property_part<2>},
      {"builtins.isinstance", handle_isinstance},
      {"builtins.issubclass", handle_issubclass},
      {"type.__instancecheck__", handle_type_instancecheck},
      {"_abc._abc_instancecheck", handle_abc_instancecheck},
      {"_abc._abc_subclasscheck", handle_abc_subclasscheck},
  };
  return rows;
}

}  // namespace magneto::capture
