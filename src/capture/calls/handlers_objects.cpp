// Methods of built-in types that are interpreted: object's protocol, reading dicts, making containers.
#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/imported.h"

namespace magneto::capture {

namespace {

Ref handle_object_new(Capture& capture, const CallArgs& args) {
  if (args.values.empty() || !PyType_Check(args.values[0])) {
    PyErr_SetString(PyExc_TypeError, "object.__new__(): not enough arguments");
    throw PythonError{};
  }
  Ref none = checked(PyTuple_New(0));
  auto* type = reinterpret_cast<PyTypeObject*>(args.values[0]);
  capture.attributes.type_lookup(type, MAGNETO_STR("__abstractmethods__"));
  return checked(PyBaseObject_Type.tp_new(type, none.get(), nullptr));
}

/// `T.__new__(cls, *args)` of a built-in container type.
template <PyTypeObject* base>
Ref handle_container_new(Capture& capture, const CallArgs& args) {
  if (args.values.empty() || !PyType_Check(args.values[0])) {
    PyErr_SetString(PyExc_TypeError, "__new__(): not enough arguments");
    throw PythonError{};
  }
  auto* type = reinterpret_cast<PyTypeObject*>(args.values[0]);
  Ref rest = checked(PyTuple_New(static_cast<Py_ssize_t>(args.positional()) - 1));
  for (size_t i = 1; i < args.positional(); ++i) {
    PyTuple_SET_ITEM(rest.get(), i - 1, capture.containers.iterable(args.values[i]).release());
  }
  return capture.calls.call_native([&] { return base->tp_new(type, rest.get(), nullptr); });
}

Ref handle_exception_new(Capture& capture, const CallArgs& args) {
  auto* type = reinterpret_cast<PyTypeObject*>(args.values.at(0));
  Ref rest = checked(PyTuple_New(static_cast<Py_ssize_t>(args.positional()) - 1));
  for (size_t i = 1; i < args.positional(); ++i) PyTuple_SET_ITEM(rest.get(), i - 1, Py_NewRef(args.values[i]));
  return checked(layout_class(type)->tp_new(type, rest.get(), nullptr));
}

Ref handle_object_init(Capture&, const CallArgs&) { return Ref::borrow(Py_None); }

Ref handle_object_getattribute(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "__getattribute__");
  Ref value = capture.attributes.generic_getattr(args.values[0], args.values[1]);
  if (value) return value;
  PyErr_Format(PyExc_AttributeError, "'%.50s' object has no attribute '%U'", Py_TYPE(args.values[0])->tp_name,
               args.values[1]);
  throw PythonError{};
}

Ref handle_object_setattr(Capture& capture, const CallArgs& args) {
  check_count(args, 3, 3, "__setattr__");
  capture.attributes.generic_setattr(args.values[0], args.values[1], args.values[2]);
  return Ref::borrow(Py_None);
}

Ref handle_object_delattr(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "__delattr__");
  capture.attributes.generic_setattr(args.values[0], args.values[1], nullptr);
  return Ref::borrow(Py_None);
}

/// copy and deepcopy: what the class says itself, or the parts that an instance is made anew from.
Ref handle_reduce_ex(Capture& capture, const CallArgs& args) {
  PyObject* object = args.values.at(0);
  PyTypeObject* type = Py_TYPE(object);
  if (is_builtin_container(object)) {
    Ref contents = capture.containers.resolve(object);
    std::vector<PyObject*> values = args.values;
    values[0] = contents.get();
    static PyObject* const reduce = PyDict_GetItemString(type_dict(&PyBaseObject_Type), "__reduce_ex__");
    return capture.calls.call_native(
        [&] { return PyObject_Vectorcall(reduce, values.data(), values.size(), nullptr); });
  }
  static PyObject* const usual = PyDict_GetItemString(type_dict(&PyBaseObject_Type), "__reduce__");
  if (capture.attributes.type_lookup(type, MAGNETO_STR("__reduce__")) != usual) {
    return capture.calls.call(capture.attributes.load_attr(object, MAGNETO_STR("__reduce__")).get(), {});
  }
  PyTypeObject* const layout = layout_class(type);
  const bool plain = is_python_class(type) &&
                     (layout == &PyBaseObject_Type || layout == &PyList_Type || layout == &PyDict_Type) &&
                     args.values.size() == 2 && PyLong_Check(args.values[1]) && PyLong_AsLong(args.values[1]) >= 2;
  if (!plain) {
    PyErr_Clear();
    capture.side_exit(BreakReason::OpaqueObject, std::string("__reduce_ex__ of an object of type ") + type->tp_name);
  }
  CallArgs instance;
  instance.values = {object};
  return capture.calls.call_polyfill("reduce_instance", instance);
}

/// Of a class or a module.
Ref handle_own_getattribute(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "__getattribute__");
  return capture.attributes.load_attr(args.values[0], args.values[1]);
}

/// super().__call__ in a metaclass: makes an instance.
Ref handle_type_call(Capture& capture, const CallArgs& args) {
  if (args.values.empty() || !PyType_Check(args.values[0])) {
    capture.side_exit(BreakReason::OpaqueCall, "call of type.__call__");
  }
  CallArgs rest = args;
  rest.values.erase(rest.values.begin());
  return capture.calls.call_type(reinterpret_cast<PyTypeObject*>(args.values[0]), rest, /*past_metaclass=*/true);
}

Ref dict_get(Capture& capture, PyObject* dict, PyObject* key) {
  capture.containers.refuse_opaque(key, 2);
  capture.protocol.check_hashable(key);
  return capture.overlays.dict_lookup(dict, key);
}

Ref handle_dict_get(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 3, "get");
  Ref value = dict_get(capture, args.values[0], args.values[1]);
  return value ? value : Ref::borrow(args.positional() > 2 ? args.values[2] : Py_None);
}

Ref handle_dict_getitem(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "__getitem__");
  return capture.protocol.subscript(args.values[0], args.values[1], /*past_override=*/true);
}

Ref handle_dict_contains(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "__contains__");
  return boolean(static_cast<bool>(dict_get(capture, args.values[0], args.values[1])));
}

/// `function.__get__(instance)`: a bound method.
Ref handle_function_get(Capture&, const CallArgs& args) {
  check_count(args, 2, 3, "__get__");
  if (args.values[1] == Py_None) return Ref::borrow(args.values[0]);
  return checked(PyMethod_New(args.values[0], args.values[1]));
}

/// `descriptor.__get__(instance)` of a field of a C class: the attribute, if the instance has it from there.
Ref handle_field_get(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 3, "__get__");
  PyObject *field = args.values[0], *owner = args.values[1], *name = PyDescr_NAME(field);
  if (!PyObject_TypeCheck(owner, PyDescr_TYPE(field))) {  // None gives the descriptor itself, all else an error
    Ref get = checked(PyObject_GetAttrString(field, "__get__"));
    return checked(PyObject_Vectorcall(get.get(), args.values.data() + 1, args.values.size() - 1, nullptr));
  }
  if (capture.attributes.type_lookup(Py_TYPE(owner), name) != field) {
    capture.side_exit(BreakReason::OpaqueCall, "call of __get__ of " + callable_name(field));
  }
  if (PyType_Check(owner) || is_tensor(owner)) return capture.attributes.load_attr(owner, name);
  return handle_object_getattribute(capture, CallArgs{{owner, name}});
}

Ref handle_mro(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "mro");
  PyObject* cls = args.values[0];
  if (!PyType_Check(cls)) capture.side_exit(BreakReason::OpaqueCall, "call of type.mro");
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && !capture.calls.classes.is_class(type)) capture.guards.bases(type);
  return checked(PySequence_List(type->tp_mro));
}

/// The classes are known by the dict that CPython keeps of them in the class: its keys are their addresses.
Ref handle_subclasses(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "__subclasses__");
  auto* type = reinterpret_cast<PyTypeObject*>(args.values[0]);
  if (!PyType_Check(args.values[0]) || !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    capture.side_exit(BreakReason::OpaqueCall, "call of type.__subclasses__ for a class of C code");
  }
  if (!type->tp_subclasses) type->tp_subclasses = checked(PyDict_New()).release();  // as after the end of one
  auto* known = static_cast<PyObject*>(type->tp_subclasses);
  std::vector<PyObject*> keys;
  PyObject* key;
  Py_ssize_t position = 0;
  while (PyDict_Next(known, &position, &key, nullptr)) keys.push_back(key);
  capture.guards.dict_keys(capture.sources.constant(known), &PyDict_Type, keys);
  return checked(PyObject_CallMethod(args.values[0], "__subclasses__", nullptr));
}

PyObject* compiler() {
  static constinit Imported compile("magneto._C", "compile");
  return compile.get();
}

/// magneto._C.compile(callable, options): real, as the run's own is, but for what it is called with.
Ref handle_compile(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "compile");
  PyObject *const callable = args.values[0], *const options = args.values[1];
  const bool known = PyFunction_Check(callable) || PyMethod_Check(callable);
  if (!known || !PyDict_CheckExact(options) || capture.world.is_outside(options)) {
    capture.side_exit(BreakReason::OpaqueCall, "call of the C function magneto._C.compile");
  }
  capture.containers.refuse_opaque(options, 2);
  Ref compiled;
  capture.run_suspended(
      [&] { compiled = Ref::steal(PyObject_CallFunctionObjArgs(compiler(), callable, options, nullptr)); });
  if (!compiled) throw PythonError{};
  capture.world.keep(compiled);
  capture.calls.compiled[compiled.get()] = Ref::borrow(options);
  return compiled;
}

}  // namespace

std::span<const HandlerRow> object_handlers() {
  static constexpr HandlerRow rows[] = {
      {"_random.Random.random", draw_number},
      {"_random.Random.getrandbits", draw_bits},
      {"_random.Random.seed", seed_random},
      {"_random.Random.getstate", state_of_random},
      {"_random.Random.setstate", set_state_of_random},
      {"magneto._C.compile", handle_compile},
      {"object.__new__", handle_object_new},
      {"object.__init__", handle_object_init},
      {"object.__getattribute__", handle_object_getattribute},
      {"object.__setattr__", handle_object_setattr},
      {"object.__delattr__", handle_object_delattr},
      {"object.__reduce_ex__", handle_reduce_ex},
      {"module.__getattribute__", handle_own_getattribute},
      {"type.__getattribute__", handle_own_getattribute},
      {"type.__call__", handle_type_call},
      {"type.__subclasses__", handle_subclasses},
      {"type.mro", handle_mro},
      {"function.__get__", handle_function_get},
      {"getset_descriptor.__get__", handle_field_get},
      {"member_descriptor.__get__", handle_field_get},
      {"dict.get", handle_dict_get},
      {"dict.__getitem__", handle_dict_getitem},
      {"dict.__contains__", handle_dict_contains},
      {"dict.__new__", handle_container_new<&PyDict_Type>},
      {"collections.OrderedDict.__new__", handle_container_new<&PyODict_Type>},
      {"list.__new__", handle_container_new<&PyList_Type>},
      {"tuple.__new__", handle_container_new<&PyTuple_Type>},
      {"BaseException.__new__", handle_exception_new},
  };
  return rows;
}

}  // namespace magneto::capture
