// C functions and C types: the effect table (effects.def) applied, and the functions that are interpreted specially.
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>
#include <string_view>

#include "capture/capture.h"
#include "python/types.h"

namespace magneto::capture {

using guards::Source;

namespace {

enum class Policy : uint8_t { Unknown, Torch, State, Pure, Method, Mutate, Handler, Break };

using HandlerFunction = Ref (*)(Capture&, const CallArgs&);

struct Effect {
  Policy policy = Policy::Unknown;
  BreakReason reason = BreakReason::OpaqueCall;
  HandlerFunction handler = nullptr;
  bool recorded = true;  // State
  std::string name;
};

// -- handlers --------------------------------------------------------------------------------------------------------

void check_count(const CallArgs& args, size_t least, size_t most, const char* name) {
  if (args.keywords() == 0 && args.positional() >= least && args.positional() <= most) return;
  PyErr_Format(PyExc_TypeError, "%s expected %zu to %zu positional arguments, got %zu", name, least, most,
               args.values.size());
  throw PythonError{};
}

Ref boolean(bool value) { return Ref::borrow(value ? Py_True : Py_False); }

Ref handle_isinstance(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "isinstance");
  Ref classes = capture.resolve_deep(args.values[1]);
  const int result = PyObject_IsInstance(args.values[0], classes.get());
  if (result < 0) throw PythonError{};
  return boolean(result);
}

Ref handle_len(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "len");
  PyObject* value = args.values[0];
  if (is_tensor(value)) return checked(PyLong_FromSsize_t(PyObject_Size(value)));
  const Source* source = capture.source_of(value);
  if (source && !capture.has_shadow(value) && !capture.is_shadow(value) && !capture.find_overlay(value, true)) {
    PyTypeObject* type = Py_TYPE(value);
    const bool plain = type == &PyList_Type || type == &PyTuple_Type || type == &PyDict_Type || type == &PySet_Type ||
                       type == &PyFrozenSet_Type || type == &PyODict_Type;
    if (plain) {
      const Py_ssize_t size = PyObject_Size(value);
      capture.guards.length(source, type, size);
      return checked(PyLong_FromSsize_t(size));
    }
  }
  Ref object = capture.resolve(value);
  if (PyObject* method = PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE)
                             ? capture.type_lookup(Py_TYPE(value), MAGNETO_STR("__len__"))
                             : nullptr) {
    if (PyFunction_Check(method))
      return capture.call(capture.wrap(method, capture.sources.constant(method)).get(), {value});
  }
  if (capture.is_outside(object.get()) && object.get() == value) object = capture.contents_of(value);
  return capture.call_native([&]() -> PyObject* {
    const Py_ssize_t size = PyObject_Size(object.get());
    return size < 0 ? nullptr : PyLong_FromSsize_t(size);
  });
}

Ref handle_getattr(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 3, "getattr");
  if (!PyUnicode_Check(args.values[1])) {
    PyErr_SetString(PyExc_TypeError, "attribute name must be string");
    throw PythonError{};
  }
  Ref name = Ref::borrow(args.values[1]);
  PyObject* interned = name.release();
  PyUnicode_InternInPlace(&interned);
  name = Ref::steal(interned);
  if (args.positional() == 2) return capture.load_attr(args.values[0], name.get());
  try {
    Ref value = capture.lookup_attr(args.values[0], name.get());
    return value ? value : Ref::borrow(args.values[2]);
  } catch (const PythonError&) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw;
    PyErr_Clear();
    return Ref::borrow(args.values[2]);
  }
}

Ref handle_hasattr(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "hasattr");
  CallArgs with_default = args;
  static PyObject* const missing = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  with_default.values.push_back(missing);
  return boolean(handle_getattr(capture, with_default).get() != missing);
}

Ref handle_setattr(Capture& capture, const CallArgs& args) {
  check_count(args, 3, 3, "setattr");
  capture.store_attr(args.values[0], args.values[1], args.values[2]);
  return Ref::borrow(Py_None);
}

Ref handle_delattr(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "delattr");
  capture.store_attr(args.values[0], args.values[1], nullptr);
  return Ref::borrow(Py_None);
}

Ref handle_iter(Capture& capture, const CallArgs& args) {
  if (args.values.size() == 1) return capture.iterate(args.values[0]);
  return capture.call_native([&] { return PyCallIter_New(args.values[0], args.values[1]); });
}

Ref handle_next(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 2, "next");
  PyObject* iterator = args.values[0];
  if (capture.is_outside(iterator))
    capture.side_exit(BreakReason::OpaqueIterator, "next() of an iterator from outside");
  return capture.call_native([&]() -> PyObject* {
    if (!Py_TYPE(iterator)->tp_iternext) {
      PyErr_Format(PyExc_TypeError, "'%.200s' object is not an iterator", Py_TYPE(iterator)->tp_name);
      return nullptr;
    }
    PyObject* item = Py_TYPE(iterator)->tp_iternext(iterator);
    if (item) return item;
    if (args.values.size() == 2 && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_StopIteration))) {
      PyErr_Clear();
      return Py_NewRef(args.values[1]);
    }
    if (!PyErr_Occurred()) PyErr_SetNone(PyExc_StopIteration);
    return nullptr;
  });
}

bool contains_tensor(PyObject* list) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    if (is_tensor(PyList_GET_ITEM(list, i))) return true;
  }
  return false;
}

/// sum, min, max over one iterable: tensors among its items make it a torch call.
Ref reduce_with(Capture& capture, const char* name, const CallArgs& args) {
  PyObject* function = PyDict_GetItemString(PyEval_GetBuiltins(), name);
  CallArgs copy = args;
  Ref items;
  if (args.positional() == 1 || std::strcmp(name, "sum") == 0) {
    items = capture.list_of(args.values[0]);
    copy.values[0] = items.get();
  }
  bool tensors = items && contains_tensor(items.get());
  for (PyObject* value : copy.values) tensors |= is_tensor(value);
  // A key is a callback, which the capture has to see.
  const bool calls_back = copy.kwnames && PySequence_Contains(copy.kwnames, MAGNETO_STR("key")) == 1;
  if (tensors && !calls_back) return capture.call_torch(function, copy);
  return capture.call_native(
      [&] { return PyObject_Vectorcall(function, copy.values.data(), copy.positional(), copy.kwnames); });
}

Ref handle_sum(Capture& capture, const CallArgs& args) { return reduce_with(capture, "sum", args); }
Ref handle_min(Capture& capture, const CallArgs& args) { return reduce_with(capture, "min", args); }
Ref handle_max(Capture& capture, const CallArgs& args) { return reduce_with(capture, "max", args); }

/// any and all, item by item, so that a tensor's truth is seen by the capture.
Ref quantify(Capture& capture, const CallArgs& args, bool stop_at) {
  Ref iterator = capture.iterate(args.values.at(0));
  if (capture.is_outside(iterator.get())) {
    capture.side_exit(BreakReason::OpaqueIterator, "any() or all() over an iterator from outside");
  }
  while (true) {
    bool end = false;
    Ref item = capture.call_native([&]() -> PyObject* {
      PyObject* next = Py_TYPE(iterator.get())->tp_iternext(iterator.get());
      if (next) return next;
      if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return nullptr;
        PyErr_Clear();
      }
      end = true;
      return Py_NewRef(Py_None);
    });
    if (end) break;
    if (capture.truth(item.get()) == stop_at) {
      // A generator left half way is closed by its destructor, which may run its `finally` blocks.
      capture.call_native([&] {
        iterator = Ref();
        return Py_NewRef(Py_None);
      });
      return boolean(stop_at);
    }
  }
  return boolean(!stop_at);
}

Ref handle_any(Capture& capture, const CallArgs& args) { return quantify(capture, args, true); }
Ref handle_all(Capture& capture, const CallArgs& args) { return quantify(capture, args, false); }

Ref handle_globals(Capture& capture, const CallArgs& args) {
  return capture.wrap(capture.frame->globals, capture.sources.constant(capture.frame->globals));
}

Ref handle_vars(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "vars");
  return capture.load_attr(args.values[0], MAGNETO_STR("__dict__"));
}

/// repr, format, str of values whose text depends on nothing but themselves.
bool has_constant_text(Capture& capture, PyObject* value) {
  if (is_scalar(value) || PyType_Check(value) || is_identity_constant(value)) return true;
  if (is_tensor(value) || capture.is_outside(value)) return false;
  return PyExceptionInstance_Check(value) || PyTuple_CheckExact(value) || PyList_CheckExact(value);
}

template <PyObject* (*function)(PyObject*)>
Ref handle_text(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 2, "repr");
  Ref value = capture.resolve(args.values[0]);
  PyTypeObject* type = Py_TYPE(value.get());
  if (!has_constant_text(capture, value.get()) && !is_builtin_container(value.get()) &&
      !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    capture.side_exit(BreakReason::OpaqueObject, std::string("the text of an object of type ") + type->tp_name);
  }
  if (is_tensor(value.get())) capture.side_exit(BreakReason::DataDependentValue, "the text of a tensor");
  return capture.call_native([&] { return function(value.get()); });
}

PyObject* format_plain(PyObject* value) { return PyObject_Format(value, nullptr); }

Ref handle_format(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 2, "format");
  if (!has_constant_text(capture, args.values[0])) {
    capture.side_exit(BreakReason::OpaqueObject,
                      std::string("the text of an object of type ") + Py_TYPE(args.values[0])->tp_name);
  }
  return checked(PyObject_Format(args.values[0], args.values.size() > 1 ? args.values[1] : nullptr));
}

Ref handle_str_format(Capture& capture, const CallArgs& args) {
  for (PyObject* value : args.values) {
    if (!has_constant_text(capture, value)) {
      capture.side_exit(BreakReason::OpaqueObject,
                        std::string("the text of an object of type ") + Py_TYPE(value)->tp_name);
    }
  }
  static PyObject* const format = PyDict_GetItemString(type_dict(&PyUnicode_Type), "format");
  return checked(PyObject_Vectorcall(format, args.values.data(), args.positional(), args.kwnames));
}

Ref handle_object_new(Capture& capture, const CallArgs& args) {
  if (args.values.empty() || !PyType_Check(args.values[0])) {
    PyErr_SetString(PyExc_TypeError, "object.__new__(): not enough arguments");
    throw PythonError{};
  }
  Ref none = checked(PyTuple_New(0));
  auto* type = reinterpret_cast<PyTypeObject*>(args.values[0]);
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
    PyTuple_SET_ITEM(rest.get(), i - 1, capture.resolve(args.values[i]).release());
  }
  return capture.call_native([&] { return base->tp_new(type, rest.get(), nullptr); });
}

Ref handle_exception_new(Capture& capture, const CallArgs& args) {
  auto* type = reinterpret_cast<PyTypeObject*>(args.values.at(0));
  Ref rest = checked(PyTuple_New(static_cast<Py_ssize_t>(args.positional()) - 1));
  for (size_t i = 1; i < args.positional(); ++i) PyTuple_SET_ITEM(rest.get(), i - 1, Py_NewRef(args.values[i]));
  return checked(type->tp_new(type, rest.get(), nullptr));
}

Ref handle_object_init(Capture&, const CallArgs&) { return Ref::borrow(Py_None); }

Ref handle_object_getattribute(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "__getattribute__");
  Ref value = capture.generic_getattr(args.values[0], args.values[1]);
  if (value) return value;
  PyErr_Format(PyExc_AttributeError, "'%.50s' object has no attribute '%U'", Py_TYPE(args.values[0])->tp_name,
               args.values[1]);
  throw PythonError{};
}

Ref handle_object_setattr(Capture& capture, const CallArgs& args) {
  check_count(args, 3, 3, "__setattr__");
  capture.generic_setattr(args.values[0], args.values[1], args.values[2]);
  return Ref::borrow(Py_None);
}

Ref handle_object_delattr(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "__delattr__");
  capture.generic_setattr(args.values[0], args.values[1], nullptr);
  return Ref::borrow(Py_None);
}

/// copy and deepcopy of a plain instance: (copyreg.__newobj__, (cls,), state), without reading the state.
Ref handle_reduce_ex(Capture& capture, const CallArgs& args) {
  PyObject* object = args.values.at(0);
  PyTypeObject* type = Py_TYPE(object);
  const bool plain =
      !PyType_HasFeature(type, Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS) &&
      type->tp_new == PyBaseObject_Type.tp_new && type->tp_itemsize == 0 &&
      !_PyType_Lookup(type, MAGNETO_STR("__getnewargs__")) && !_PyType_Lookup(type, MAGNETO_STR("__getnewargs_ex__")) &&
      !_PyType_Lookup(type, MAGNETO_STR("__slots__"));
  PyObject* getstate = _PyType_Lookup(type, MAGNETO_STR("__getstate__"));
  if (!plain || (getstate && PyFunction_Check(getstate))) {
    capture.side_exit(BreakReason::OpaqueObject, std::string("__reduce_ex__ of an object of type ") + type->tp_name);
  }
  static PyObject* const newobj = [] {
    Ref module = Ref::steal(PyImport_ImportModule("copyreg"));
    return PyObject_GetAttrString(module.get(), "__newobj__");
  }();
  Ref function = capture.wrap(newobj, capture.sources.constant(newobj));
  Ref state = capture.lookup_attr(object, MAGNETO_STR("__dict__"));
  if (!state) state = Ref::borrow(Py_None);
  return checked(
      Py_BuildValue("(O(O)OOO)", function.get(), reinterpret_cast<PyObject*>(type), state.get(), Py_None, Py_None));
}

Ref handle_type_getattribute(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "__getattribute__");
  return capture.load_attr(args.values[0], args.values[1]);
}

Ref dict_get(Capture& capture, PyObject* dict, PyObject* key) {
  if (PyObject_Hash(key) == -1) throw PythonError{};
  return capture.dict_lookup(dict, key);
}

Ref handle_dict_get(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 3, "get");
  Ref value = dict_get(capture, args.values[0], args.values[1]);
  return value ? value : Ref::borrow(args.positional() > 2 ? args.values[2] : Py_None);
}

Ref handle_dict_getitem(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "__getitem__");
  return capture.subscript(args.values[0], args.values[1], /*past_override=*/true);
}

Ref handle_dict_contains(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "__contains__");
  return boolean(static_cast<bool>(dict_get(capture, args.values[0], args.values[1])));
}

struct HandlerRow {
  const char* name;
  HandlerFunction function;
};

constexpr HandlerRow kHandlers[] = {
    {"builtins.isinstance", handle_isinstance},
    {"builtins.len", handle_len},
    {"builtins.getattr", handle_getattr},
    {"builtins.setattr", handle_setattr},
    {"builtins.hasattr", handle_hasattr},
    {"builtins.delattr", handle_delattr},
    {"builtins.iter", handle_iter},
    {"builtins.next", handle_next},
    {"builtins.sum", handle_sum},
    {"builtins.min", handle_min},
    {"builtins.max", handle_max},
    {"builtins.any", handle_any},
    {"builtins.all", handle_all},
    {"builtins.globals", handle_globals},
    {"builtins.vars", handle_vars},
    {"builtins.repr", handle_text<PyObject_Repr>},
    {"builtins.ascii", handle_text<PyObject_ASCII>},
    {"builtins.format", handle_format},
    {"object.__repr__", handle_text<PyObject_Repr>},
    {"object.__str__", handle_text<PyObject_Str>},
    {"object.__format__", handle_text<format_plain>},
    {"str.format", handle_str_format},
    {"object.__new__", handle_object_new},
    {"object.__init__", handle_object_init},
    {"object.__getattribute__", handle_object_getattribute},
    {"object.__setattr__", handle_object_setattr},
    {"object.__delattr__", handle_object_delattr},
    {"object.__reduce_ex__", handle_reduce_ex},
    {"type.__getattribute__", handle_type_getattribute},
    {"dict.get", handle_dict_get},
    {"dict.__getitem__", handle_dict_getitem},
    {"dict.__contains__", handle_dict_contains},
    {"dict.__new__", handle_container_new<&PyDict_Type>},
    {"collections.OrderedDict.__new__", handle_container_new<&PyODict_Type>},
    {"list.__new__", handle_container_new<&PyList_Type>},
    {"tuple.__new__", handle_container_new<&PyTuple_Type>},
    {"BaseException.__new__", handle_exception_new},
};

struct EffectRow {
  const char* name;
  Policy policy;
  const char* note;
};

constexpr EffectRow kEffects[] = {
#define X(name, policy, note) {name, Policy::policy, note},
#include "capture/effects.def"
#undef X
};

Effect find_effect(const std::string& name) {
  static const auto* rows = [] {
    auto* map = new std::unordered_map<std::string, const EffectRow*>;
    for (const EffectRow& row : kEffects) map->emplace(row.name, &row);
    return map;
  }();
  Effect effect;
  effect.name = name;
  auto found = rows->find(name);
  if (found == rows->end()) found = rows->find(name.substr(0, name.rfind('.')) + ".*");
  if (found == rows->end()) return effect;
  effect.policy = found->second->policy;
  effect.recorded = std::strcmp(found->second->note, "unrecorded") != 0;
  if (effect.policy == Policy::Break) {
#define X(reason_name, explanation, hint) \
  if (std::strcmp(found->second->note, #reason_name) == 0) effect.reason = BreakReason::reason_name;
#include "capture/breaks.def"
#undef X
  }
  if (effect.policy == Policy::Handler) {
    for (const HandlerRow& row : kHandlers) {
      if (name == row.name) effect.handler = row.function;
    }
  }
  return effect;
}

/// The name under which a method of `type` stands in the effect table.
std::string method_name(PyTypeObject* type, const char* method) {
  std::string_view name = type->tp_name;
  if (PyExceptionClass_Check(reinterpret_cast<PyObject*>(type))) name = "BaseException";
  return std::string(name) + "." + method;
}

const Effect& effect_of(const void* key, const std::function<std::string()>& name) {
  static auto* known = new std::unordered_map<const void*, Effect>;
  auto found = known->find(key);
  if (found != known->end()) return found->second;
  return known->emplace(key, find_effect(name())).first->second;
}

bool is_module_function(PyCFunctionObject* function) {
  PyObject* self = function->m_self;
  if (!self || PyModule_Check(self)) return true;
  return function->m_module && !PyType_Check(self) &&
         (std::strncmp(Py_TYPE(self)->tp_name, "pybind11", 8) == 0 || PyCapsule_CheckExact(self));
}

}  // namespace

Ref Capture::call_c_function(PyObject* callable, const CallArgs& original_args) {
  PyTypeObject* kind = Py_TYPE(callable);
  CallArgs args = original_args;
  Ref unbound = Ref::borrow(callable);
  const Effect* effect;
  if (kind == &PyCFunction_Type || kind == &PyCMethod_Type) {
    auto* function = reinterpret_cast<PyCFunctionObject*>(callable);
    PyObject* self = function->m_self;
    if (is_module_function(function)) {
      effect = &effect_of(function->m_ml, [&] {
        const char* module = function->m_module && PyUnicode_Check(function->m_module)
                                 ? PyUnicode_AsUTF8(function->m_module)
                                 : (self && PyModule_Check(self) ? PyModule_GetName(self) : "");
        return std::string(module) + "." + function->m_ml->ml_name;
      });
    } else if (PyType_Check(self)) {
      auto* type = reinterpret_cast<PyTypeObject*>(self);
      if (std::strcmp(function->m_ml->ml_name, "__new__") == 0) {
        effect = &effect_of(type, [&] { return method_name(type, "__new__"); });
      } else {
        effect = &effect_of(function->m_ml, [&] { return method_name(type, function->m_ml->ml_name); });
      }
    } else {
      // A bound method: call its descriptor with the receiver first.
      PyObject* descriptor = nullptr;
      for (Py_ssize_t i = 0; !descriptor && i < PyTuple_GET_SIZE(Py_TYPE(self)->tp_mro); ++i) {
        auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(Py_TYPE(self)->tp_mro, i));
        PyObject* found = PyDict_GetItemString(type_dict(base), function->m_ml->ml_name);
        if (found && Py_TYPE(found) == &PyMethodDescr_Type &&
            reinterpret_cast<PyMethodDescrObject*>(found)->d_method == function->m_ml) {
          descriptor = found;
        }
      }
      if (!descriptor) side_exit(BreakReason::OpaqueCall, "call of " + callable_name(callable));
      args.values.insert(args.values.begin(), self);
      return call_c_function(descriptor, args);
    }
  } else if (kind == &_PyMethodWrapper_Type) {
    Ref self = checked(PyObject_GetAttrString(callable, "__self__"));
    Ref name = checked(PyObject_GetAttrString(callable, "__name__"));
    PyObject* descriptor = _PyType_Lookup(Py_TYPE(self.get()), name.get());
    if (!descriptor || Py_TYPE(descriptor) != &PyWrapperDescr_Type) {
      Ref owner = checked(PyObject_GetAttrString(callable, "__objclass__"));
      descriptor = _PyType_Lookup(reinterpret_cast<PyTypeObject*>(owner.get()), name.get());
    }
    if (!descriptor) side_exit(BreakReason::OpaqueCall, "call of " + callable_name(callable));
    args.values.insert(args.values.begin(), self.get());
    return call_c_function(descriptor, args);
  } else {
    PyTypeObject* type = PyDescr_TYPE(callable);
    const char* name = PyUnicode_AsUTF8(PyDescr_NAME(callable));
    effect = &effect_of(callable, [&] {
      keep_forever(callable);
      return method_name(type, name);
    });
  }

  const bool allows_cut = effect->policy == Policy::Unknown || effect->policy == Policy::Break;
  std::optional<Uncuttable> scope;
  if (!allows_cut && frame) scope.emplace(*this);
  auto run_resolved = [&](bool mutate) -> Ref {
    std::vector<Ref> held;
    CallArgs values;
    values.kwnames = args.kwnames;
    bool tensors = false;
    for (size_t i = 0; i < args.values.size(); ++i) {
      Ref value = resolve(args.values[i], mutate && i == 0);
      if (value.get() == args.values[i] && is_outside(value.get()) && i == 0 &&
          (PyDict_Check(value.get()) || PyList_Check(value.get()) || PyTuple_Check(value.get())) &&
          !has_shadow(value.get()) && !is_shadow(value.get())) {
        if (mutate)
          side_exit(BreakReason::Mutation,
                    "an instance of " + std::string(Py_TYPE(value.get())->tp_name) + " from outside is changed");
        value = contents_of(value.get());
      }
      tensors |= is_tensor(value.get()) && (i > 0 || effect->policy == Policy::Pure);
      held.push_back(value);
      values.values.push_back(value.get());
    }
    if (tensors && effect->policy == Policy::Pure) return call_torch(callable, args);
    return call_native(
        [&] { return PyObject_Vectorcall(callable, values.values.data(), values.positional(), values.kwnames); });
  };
  switch (effect->policy) {
    case Policy::Torch:
      return call_torch(callable, args);
    case Policy::State: {
      Ref result = Ref::steal(PyObject_Vectorcall(callable, args.values.data(), args.positional(), args.kwnames));
      if (!result) throw PythonError{};
      if (!effect->recorded) return result;
      graph::TorchNode node;
      node.target = Ref::borrow(callable);
      for (PyObject* value : args.values) node.args.push_back(py_arg(value));
      graph.torch_nodes.push_back(std::move(node));
      return result;
    }
    case Policy::Handler:
      return effect->handler(*this, args);
    case Policy::Mutate:
      return run_resolved(true);
    case Policy::Pure:
    case Policy::Method:
      return run_resolved(false);
    case Policy::Break:
      side_exit(effect->reason, "call of " + effect->name);
    case Policy::Unknown:
      break;
  }
  side_exit(BreakReason::OpaqueCall, "call of the C function " + effect->name);
}

// -- classes ---------------------------------------------------------------------------------------------------------

namespace {

/// C types whose construction reads its arguments only.
bool is_pure_type(PyTypeObject* type) {
  static const auto* types = [] {
    auto* set = new std::unordered_map<PyTypeObject*, bool>;
    for (PyTypeObject* t :
         {&PyBaseObject_Type,   &PyLong_Type,        &PyFloat_Type,     &PyBool_Type,  &PyComplex_Type,
          &PyBytes_Type,        &PyList_Type,        &PyTuple_Type,     &PyDict_Type,  &PySet_Type,
          &PyFrozenSet_Type,    &PyRange_Type,       &PyEnum_Type,      &PyZip_Type,   &PyMap_Type,
          &PyFilter_Type,       &PyReversed_Type,    &PySlice_Type,     &PyODict_Type, &PyProperty_Type,
          &PyStaticMethod_Type, &PyClassMethod_Type, &PyDictProxy_Type, &PyMethod_Type}) {
      (*set)[t] = true;
    }
    auto add = [&](const char* module_name, std::initializer_list<const char*> names) {
      Ref module = Ref::steal(PyImport_ImportModule(module_name));
      for (const char* name : names) {
        Ref t = Ref::steal(PyObject_GetAttrString(module.get(), name));
        if (!t) {
          PyErr_Clear();
          continue;
        }
        if (PyType_Check(t.get())) (*set)[reinterpret_cast<PyTypeObject*>(t.release())] = true;
      }
    };
    add("collections", {"deque", "defaultdict"});
    add("functools", {"partial"});
    add("itertools",
        {"chain", "product", "repeat", "count", "islice", "zip_longest", "accumulate", "starmap", "permutations",
         "combinations", "takewhile", "dropwhile", "compress", "groupby", "cycle", "pairwise", "filterfalse"});
    add("operator", {"itemgetter", "attrgetter", "methodcaller"});
    add("torch", {"Size", "device", "finfo", "iinfo"});
    return set;
  }();
  return types->count(type) != 0;
}

}  // namespace

Ref Capture::call_type(PyTypeObject* type, const CallArgs& args) {
  PyObject* object = reinterpret_cast<PyObject*>(type);
  if (type == &PyType_Type && args.values.size() == 1) {
    PyObject* of = reinterpret_cast<PyObject*>(Py_TYPE(args.values[0]));
    return wrap(of, sources.constant(of));
  }
  if (type == &PySuper_Type) return make_super(args);
  PyTypeObject* meta = Py_TYPE(object);
  if (meta != &PyType_Type) {
    PyObject* meta_call = type_lookup(meta, MAGNETO_STR("__call__"));
    if (meta_call && PyFunction_Check(meta_call)) {
      CallArgs with_class = args;
      with_class.values.insert(with_class.values.begin(), object);
      return call(wrap(meta_call, sources.constant(meta_call)).get(), std::move(with_class));
    }
  }
  if (type == &PyUnicode_Type) {
    if (args.values.empty()) return checked(PyUnicode_New(0, 0));
    if (args.values.size() == 1) return handle_text<PyObject_Str>(*this, args);
  }
  const bool exception = PyExceptionClass_Check(object);
  PyObject* init = type_lookup(type, MAGNETO_STR("__init__"));
  PyObject* maker = type_lookup(type, MAGNETO_STR("__new__"));
  const bool python_init = init && PyFunction_Check(init);
  const bool python_new = maker && Py_TYPE(maker) == &PyStaticMethod_Type;
  if (is_pure_type(type) || (exception && !python_init && !python_new)) {
    Uncuttable scope(*this);
    std::vector<Ref> held;
    CallArgs values;
    values.kwnames = args.kwnames;
    bool tensor = false;
    for (PyObject* arg : args.values) {
      tensor |= is_tensor(arg);
      Ref value = resolve(arg);
      if (value.get() == arg && is_outside(arg) && !is_builtin_container(arg) && type != &PyMethod_Type &&
          (PyDict_Check(arg) || PyList_Check(arg) || PyTuple_Check(arg))) {
        value = contents_of(arg);
      }
      if (PyIter_Check(arg) && is_outside(arg)) {
        side_exit(BreakReason::OpaqueIterator, std::string(type->tp_name) + "() of an iterator from outside");
      }
      held.push_back(value);
      values.values.push_back(value.get());
    }
    const bool number =
        type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type || type == &PyComplex_Type;
    if (tensor && number) {
      if (type == &PyBool_Type) return Ref::borrow(truth(args.values[0]) ? Py_True : Py_False);
      return call_torch(object, values);
    }
    return call_native(
        [&] { return PyObject_Vectorcall(object, values.values.data(), values.positional(), values.kwnames); });
  }
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    side_exit(BreakReason::OpaqueCall, std::string("an object of the C type ") + type->tp_name + " is made");
  }
  if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(THPVariableClass))) {
    side_exit(BreakReason::UnsupportedTensor, std::string("a tensor of type ") + type->tp_name + " is made");
  }
  Ref instance;
  if (python_new) {
    Uncuttable scope(*this);
    Ref function = checked(PyObject_GetAttr(maker, MAGNETO_STR("__func__")));
    CallArgs with_class = args;
    with_class.values.insert(with_class.values.begin(), object);
    instance = call(wrap(function.get(), sources.constant(function.get())).get(), std::move(with_class));
  } else {
    const auto known_new = [&](PyTypeObject* base) { return type->tp_new == base->tp_new; };
    if (!known_new(&PyBaseObject_Type) && !known_new(&PyDict_Type) && !known_new(&PyList_Type) &&
        !known_new(&PyTuple_Type) && !known_new(&PySet_Type) && !known_new(&PyODict_Type) && !exception) {
      side_exit(BreakReason::OpaqueCall, std::string("an object of type ") + type->tp_name + " is made by C code");
    }
    Uncuttable scope(*this);
    Ref positional = checked(PyTuple_New(static_cast<Py_ssize_t>(args.positional())));
    for (size_t i = 0; i < args.positional(); ++i) {
      PyTuple_SET_ITEM(positional.get(), i, resolve(args.values[i]).release());
    }
    Ref keywords;
    for (size_t i = 0; i < args.keywords(); ++i) {
      if (!keywords) keywords = checked(PyDict_New());
      if (PyDict_SetItem(keywords.get(), PyTuple_GET_ITEM(args.kwnames, i), args.values[args.positional() + i]) < 0) {
        throw PythonError{};
      }
    }
    instance = call_native([&] { return type->tp_new(type, positional.get(), keywords.get()); });
    if (!python_init && type->tp_init != PyBaseObject_Type.tp_init) {
      call_native([&]() -> PyObject* {
        return type->tp_init(instance.get(), positional.get(), keywords.get()) < 0 ? nullptr : Py_NewRef(Py_None);
      });
    }
  }
  if (!python_init || !PyObject_TypeCheck(instance.get(), type)) return instance;
  CallArgs with_self = args;
  with_self.values.insert(with_self.values.begin(), instance.get());
  frame->result_override = instance;
  Ref none = call(wrap(init, sources.constant(init)).get(), std::move(with_self));
  frame->result_override = Ref();
  if (none.get() != Py_None) {
    PyErr_Format(PyExc_TypeError, "__init__() should return None, not '%.200s'", Py_TYPE(none.get())->tp_name);
    throw PythonError{};
  }
  return instance;
}

Ref Capture::make_super(const CallArgs& args) {
  PyObject *type = nullptr, *self = nullptr;
  if (args.values.size() == 2) {
    type = args.values[0];
    self = args.values[1];
  } else if (args.values.empty()) {
    const CodeInfo& info = *frame->info;
    self = frame->slots[0];
    if (self && PyCell_Check(self) && !is_outside(self)) self = PyCell_GET(self);
    for (int32_t i = 0; i < info.free_count; ++i) {
      const int32_t slot = info.first_free + i;
      if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(info.localsplus_names.get(), slot), "__class__") == 0) {
        type = PyCell_GET(frame->slots[slot]);
        if (type) wrap(type, sources.constant(type));
      }
    }
  }
  if (!type || !self) {
    PyErr_SetString(PyExc_RuntimeError, "super(): no arguments");
    throw PythonError{};
  }
  if (frame->slots[0] == self && frame == &root_) self = read_raw(0).get();
  return checked(PyObject_CallFunctionObjArgs(reinterpret_cast<PyObject*>(&PySuper_Type), type, self, nullptr));
}

}  // namespace magneto::capture
