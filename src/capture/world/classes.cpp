// Calls of classes: how instances are made.
#include <torch/csrc/Generator.h>

#include <algorithm>
#include <cstring>

#include "capture/calls/callbacks.h"
#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/calls/special_methods.h"
#include "capture/capture.h"
#include "capture/interpreter/frames.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/tried_numbers.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "guards/constants.h"
#include "guards/objects.h"
#include "python/abi/dicts.h"
#include "python/abi/private.h"
#include "python/imported.h"
#include "python/made_once.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// C types whose construction reads its arguments only.
bool is_pure_type(PyTypeObject* type) {
  static constinit MadeOnce<const std::unordered_map<PyTypeObject*, bool>> made;
  const auto* types = made.get([] {
    auto* set = new std::unordered_map<PyTypeObject*, bool>;
    for (PyTypeObject* t :
         {&PyBaseObject_Type, &PyLong_Type,  &PyFloat_Type,     &PyBool_Type,  &PyComplex_Type, &PyBytes_Type,
          &PyByteArray_Type,  &PyList_Type,  &PyTuple_Type,     &PyDict_Type,  &PySet_Type,     &PyFrozenSet_Type,
          &PyRange_Type,      &PyEnum_Type,  &PyZip_Type,       &PyMap_Type,   &PyFilter_Type,  &PyReversed_Type,
          &PySlice_Type,      &PyODict_Type, &PyDictProxy_Type, &PyMethod_Type}) {
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
    add("itertools", {"chain", "product", "repeat", "count", "islice", "zip_longest", "accumulate", "starmap",
                      "permutations", "combinations", "combinations_with_replacement", "takewhile", "dropwhile",
                      "compress", "groupby", "cycle", "pairwise", "filterfalse"});
    add("operator", {"itemgetter", "attrgetter", "methodcaller"});
    add("torch._C", {"DisableTorchFunction", "DisableTorchFunctionSubclass", "DispatchKeySet"});
    add("torch", {"Size", "device", "finfo", "iinfo"});
    return set;
  });
  return types->count(type) != 0 || std::strncmp(type->tp_name, "torch.return_types.", 19) == 0;
}

/// Iterators of C code that call a function: which of their arguments it is, by position and keyword, and whether they
/// look into their items themselves.
struct CallingIterator {
  enum Reads : uint8_t { Never, WithoutFunction, Always };
  const char* type;
  size_t position;
  const char* keyword;
  Reads reads;
};

constexpr CallingIterator kCallingIterators[] = {
    {"map", 0, "", CallingIterator::Never},
    {"filter", 0, "", CallingIterator::WithoutFunction},
    {"itertools.filterfalse", 0, "", CallingIterator::WithoutFunction},
    {"itertools.takewhile", 0, "", CallingIterator::Never},
    {"itertools.dropwhile", 0, "", CallingIterator::Never},
    {"itertools.starmap", 0, "", CallingIterator::Always},
    {"itertools.accumulate", 1, "func", CallingIterator::WithoutFunction},
    {"itertools.groupby", 1, "key", CallingIterator::Always},
};

const CallingIterator* calling_iterator(PyTypeObject* type) {
  for (const CallingIterator& row : kCallingIterators) {
    if (std::strcmp(row.type, type->tp_name) == 0) return &row;
  }
  return nullptr;
}

/// Its instances have what they are made with, which C code does not read.
bool keeps_arguments(PyTypeObject* type) {
  static constinit Imported partial("functools", "partial"), repeat("itertools", "repeat");
  return type == &PyMethod_Type || type == &PySlice_Type || type == partial.type() || type == repeat.type() ||
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(PyExc_BaseException));
}

/// A tuple and a dict (or null), with stand-ins for containers.
std::pair<Ref, Ref> arguments_for_c(Capture& capture, const CallArgs& args) {
  Ref positional = checked(PyTuple_New(static_cast<Py_ssize_t>(args.positional())));
  for (size_t i = 0; i < args.positional(); ++i) {
    PyTuple_SET_ITEM(positional.get(), i, capture.containers.iterable(args.values[i]).release());
  }
  Ref keywords;
  for (size_t i = 0; i < args.keywords(); ++i) {
    if (!keywords) keywords = checked(PyDict_New());
    if (PyDict_SetItem(keywords.get(), PyTuple_GET_ITEM(args.kwnames, i), args.values[args.positional() + i]) < 0) {
      throw PythonError{};
    }
  }
  return {std::move(positional), std::move(keywords)};
}

/// A partial from outside anew, its parts read under guards: C code takes them out of it when a partial of it is made.
Ref copy_of_partial(Capture& capture, PyObject* partial) {
  if (instance_dict(partial))
    capture.side_exit(BreakReason::OpaqueObject, "a partial of a partial with attributes is made");
  Ref function = capture.attributes.load_attr(partial, MAGNETO_STR("func"));
  Ref bound = capture.attributes.load_attr(partial, MAGNETO_STR("args"));
  Ref keywords = capture.attributes.load_attr(partial, MAGNETO_STR("keywords"));
  Ref first = checked(PyTuple_Pack(1, function.get()));
  Ref all = checked(PySequence_Concat(first.get(), capture.containers.resolve(bound.get()).get()));
  Ref named = checked(PyDict_Copy(capture.containers.resolve(keywords.get()).get()));
  return checked(PyObject_Call(reinterpret_cast<PyObject*>(Py_TYPE(partial)), all.get(), named.get()));
}

/// int(tensor), float(tensor), complex(tensor).
Ref number_of_tensor(Capture& capture, PyTypeObject* type, const CallArgs& values) {
  const c10::ScalarType dtype = unpack_tensor(values.values[0]).scalar_type();
  const bool integral = c10::isIntegralType(dtype, /*includeBool=*/false);
  if (values.values.size() == 1 && capture.session->takes.numbers &&
      (type == &PyFloat_Type ? integral || c10::isFloatingType(dtype) : type == &PyLong_Type && integral)) {
    static PyObject* const item = PyObject_GetAttrString(tensor_class(), "item");
    Ref made = capture.torch.call_torch(item, values);
    return type == &PyLong_Type ? made : capture.calls.call_type(type, CallArgs{{made.get()}});
  }
  return capture.torch.call_torch(reinterpret_cast<PyObject*>(type), values);
}

/// An instance of a class whose C code does no more than make it, and call functions that it is given.
Ref call_c_type(Capture& capture, PyTypeObject* type, const CallArgs& args) {
  static constexpr PyTypeObject* reading[] = {&PyLong_Type,    &PyFloat_Type, &PyBool_Type,
                                              &PyComplex_Type, &PyBytes_Type, &PyByteArray_Type,
                                              &PyRange_Type,   &PySet_Type,   &PyFrozenSet_Type};
  const bool reads = std::ranges::find(reading, type) != std::end(reading);
  NonResumable scope(capture);
  std::vector<Ref> held;
  CallArgs values;
  values.kwnames = args.kwnames;
  bool tensor = false;
  const CallingIterator* calling = calling_iterator(type);
  const auto is_function = [&](size_t i) {
    if (!calling) return false;
    PyObject* keyword = args.keyword(i);
    return keyword ? PyUnicode_CompareWithASCIIString(keyword, calling->keyword) == 0 : i == calling->position;
  };
  bool reads_items = calling && calling->reads != CallingIterator::Never;
  for (size_t i = 0; i < args.values.size(); ++i) {
    if (calling && calling->reads == CallingIterator::WithoutFunction && is_function(i) && args.values[i] != Py_None) {
      reads_items = false;
    }
  }
  for (size_t i = 0; i < args.values.size(); ++i) {
    PyObject* arg = args.values[i];
    if (is_array(arg) && !keeps_arguments(type)) {
      held.push_back(capture.numpy.stand_in_for(arg));
      arg = held.back().get();
    }
    tensor |= is_tensor(arg);
    if (is_function(i)) {
      held.push_back(capture.callbacks.callback(arg));
      values.values.push_back(held.back().get());
      continue;
    }
    capture.containers.refuse_opaque_iterable(arg);
    const bool deep = PyType_IsSubtype(type, &PyDict_Type) || reads_items;
    Ref value = deep ? capture.containers.resolve_deep(arg) : capture.containers.resolve(arg);
    if (reads_items) capture.containers.refuse_opaque(value.get(), 2);
    if (value.get() == arg && capture.world.is_outside(arg) &&
        std::strcmp(Py_TYPE(arg)->tp_name, "functools.partial") == 0) {
      value = copy_of_partial(capture, arg);
    }
    if (value.get() == arg && capture.world.is_outside(arg) && is_derived_container(arg) && !keeps_arguments(type)) {
      value = capture.containers.contents_of(arg);
    }
    if (reads) capture.containers.refuse_opaque(value.get(), 1);
    guard_classes_asked(capture, reinterpret_cast<PyObject*>(type), value.get(), reads || deep ? 1 : 0);
    if (PyIter_Check(arg) && capture.world.is_outside(arg)) {
      capture.side_exit(BreakReason::OpaqueIterator, std::string(type->tp_name) + "() of an iterator from outside");
    }
    held.push_back(value);
    values.values.push_back(value.get());
  }
  const bool number = type == &PyLong_Type || type == &PyFloat_Type || type == &PyComplex_Type;
  if (tensor && type == &PyBool_Type) {
    if (Ref now = bool_of_data(capture, args.values[0])) return now;
    return Ref::borrow(capture.protocol.truth(args.values[0]) ? Py_True : Py_False);
  }
  if (tensor && number) return number_of_tensor(capture, type, values);
  PyObject* const object = reinterpret_cast<PyObject*>(type);
  Ref made = capture.calls.call_native(
      [&] { return PyObject_Vectorcall(object, values.values.data(), values.positional(), values.kwnames); });
  if (PyDict_Check(made.get())) {  // its keys have been hashed
    PyObject* key;
    Py_ssize_t position = 0;
    while (PyDict_Next(made.get(), &position, &key, nullptr)) capture.containers.refuse_opaque(key, 1);
  }
  return made;
}

/// As torch.Tensor(data), which shares memory and keeps what autograd knows.
Ref tensor_of_class(Capture& capture, PyTypeObject* type, const CallArgs& args) {
  const bool plain = args.values.size() == 1 && !args.kwnames && is_fake_tensor(args.values[0]) &&
                     is_exact_tensor_type(Py_TYPE(args.values[0]));
  if (!plain) {
    capture.side_exit(BreakReason::UnsupportedTensor, std::string("a tensor of type ") + type->tp_name + " is made");
  }
  static PyObject* const as_subclass = PyObject_GetAttrString(tensor_class(), "as_subclass");
  return capture.torch.call_torch(as_subclass, CallArgs{{args.values[0], reinterpret_cast<PyObject*>(type)}});
}

/// `weakref.ref(object)`. Null: of what the capture does not know how it is held.
Ref weak_reference(Capture& capture, PyObject* object) {
  const auto shadowed = capture.containers.shadow_original.find(object);
  if (shadowed != capture.containers.shadow_original.end()) object = shadowed->second;
  const bool is_constant = is_identity_constant(object);
  const bool known = is_tensor(object) ? is_fake_tensor(object) && is_exact_tensor_type(Py_TYPE(object))
                                       : is_builtin_container(object) || is_python_class(Py_TYPE(object));
  if (!is_constant && !known) return {};
  if (is_tensor(object)) capture.world.keep(Ref::borrow(object));  // whether it still lives, only the run says
  Ref reference = checked(PyWeakref_NewRef(object, nullptr));      // the one that it has
  if (is_constant) return capture.world.wrap(reference.get(), capture.sources.constant(reference.get()));
  if (capture.world.is_outside(reference.get())) return {};  // read somewhere: another run may find another one there
  capture.world.keep(reference);
  return reference;
}

/// A metaclass has its own `__call__`. Null: that of `type`.
Ref call_by_metaclass(Capture& capture, PyTypeObject* type, const CallArgs& args) {
  PyTypeObject* meta = Py_TYPE(type);
  PyObject* method = meta == &PyType_Type ? nullptr : capture.attributes.type_lookup(meta, MAGNETO_STR("__call__"));
  if (!method || (!PyFunction_Check(method) && !PyType_Check(method))) return {};
  CallArgs all = args;  // a class is no method: typing.TypedDict's is dict
  if (PyFunction_Check(method)) all.values.insert(all.values.begin(), reinterpret_cast<PyObject*>(type));
  return capture.calls.call(capture.world.wrap(method, capture.sources.constant(method)).get(), std::move(all));
}

/// types.SimpleNamespace(name=value...).
Ref make_namespace(PyTypeObject* type, const CallArgs& args) {
  const Ref none = checked(PyTuple_New(0));
  Ref result = checked(type->tp_new(type, none.get(), nullptr));
  for (size_t i = 0; i < args.values.size(); ++i) {
    if (PyObject_SetAttr(result.get(), args.keyword(i), args.values[i]) < 0) throw PythonError{};
  }
  return result;
}

CallArgs with_first(PyObject* first, CallArgs args) {
  args.values.insert(args.values.begin(), first);
  return args;
}

/// It does not change: one object serves all runs.
static Ref made_placement(Capture& capture, PyObject* type, const CallArgs& args) {
  const auto [positional, keywords] = arguments_for_c(capture, args);
  const Ref made = checked(PyObject_Call(type, positional.get(), keywords.get()));
  return capture.world.wrap(made.get(), capture.sources.constant(made.get()));
}

}  // namespace

Ref Calls::call_type(PyTypeObject* type, const CallArgs& given, bool past_metaclass) {
  PyObject* object = reinterpret_cast<PyObject*>(type);
  CallArgs args = given;
  if (type == &PyType_Type && args.values.size() == 1) {
    PyObject* of = reinterpret_cast<PyObject*>(Py_TYPE(sample_of(args.values[0])));
    return c.world.wrap(of, c.sources.constant(of));
  }
  const bool metaclass = PyType_IsSubtype(type, &PyType_Type);
  if (type == &PyType_Type) return c.calls.classes.make_by_type(with_first(object, args));
  if (type == &PySuper_Type) return make_super(args);
  if (type == weakref_type() && args.values.size() == 1 && !args.kwnames) {
    if (Ref reference = weak_reference(c, args.values[0])) return reference;
  }
  if (type == guards::namespace_type() && args.positional() == 0) return make_namespace(type, args);
  if (Ref wrapper = c.calls.classes.make_wrapper(type, args)) return wrapper;
  if (Ref tensor = c.torch.legacy_tensor(type, args)) return tensor;
  if (object == THPGeneratorClass) {
    c.numbers.specialize_all(args);
    return c.torch.make_generator(args);
  }
  static constinit Imported variable("torch.autograd", "Variable");
  if (object == variable.get() && !args.values.empty() && is_tensor(args.values[0]))
    return c.torch.call_torch(object, args);
  if (!past_metaclass) {
    if (Ref made = call_by_metaclass(c, type, args)) return made;
  }
  if (type == &PyUnicode_Type) {
    c.numbers.specialize_all(args);
    if (args.values.empty()) return checked(PyUnicode_New(0, 0));
    if (args.values.size() == 1) return text_of(c, args);
  }
  if (type == &PyLong_Type || type == &PyFloat_Type) {
    if (Ref number = c.numbers.unknown_function(object, args)) return number;
  }
  if (type->tp_new != PyBaseObject_Type.tp_new && !is_python_class(type)) c.numbers.specialize_all(args);
  const bool exception = PyExceptionClass_Check(object);
  PyObject* init = c.attributes.type_lookup(type, MAGNETO_STR("__init__"));
  PyObject* maker = c.attributes.type_lookup(type, MAGNETO_STR("__new__"));
  const bool python_init = init && PyFunction_Check(init);
  const bool python_new = maker && Py_TYPE(maker) == &PyStaticMethod_Type;
  if (is_pure_type(type) || (exception && !python_init && !python_new)) return call_c_type(c, type, args);
  if (guards::is_placement_type(type)) return made_placement(c, object, args);
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    c.side_exit(BreakReason::OpaqueCall, std::string("an object of the C type ") + type->tp_name + " is made");
  }
  const bool tensor = PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(tensor_class()));
  if (c.attributes.type_lookup(type, MAGNETO_STR("__del__"))) {
    c.side_exit(BreakReason::Finalizer, std::string("an object of type ") + type->tp_name + " is made");
  }
  Ref instance;
  if (python_new) {
    NonResumable scope(c);
    Ref function = checked(PyObject_GetAttr(maker, MAGNETO_STR("__func__")));
    instance = call(c.world.wrap(function.get(), c.sources.constant(function.get())).get(), with_first(object, args));
  } else if (metaclass) {
    instance = classes.make_by_type(with_first(object, args));
  } else if (tensor) {
    instance = tensor_of_class(c, type, args);
  } else {
    const auto known_new = [&](PyTypeObject* base) { return type->tp_new == base->tp_new; };
    if (!known_new(&PyBaseObject_Type) && !known_new(&PyDict_Type) && !known_new(&PyList_Type) &&
        !known_new(&PyTuple_Type) && !known_new(&PySet_Type) && !known_new(&PyFrozenSet_Type) &&
        !known_new(guards::deque_type()) && !known_new(&PyODict_Type) && !exception) {
      c.side_exit(BreakReason::OpaqueCall, std::string("an object of type ") + type->tp_name + " is made by C code");
    }
    NonResumable scope(c);
    c.attributes.type_lookup(type, MAGNETO_STR("__abstractmethods__"));
    if (!known_new(&PyBaseObject_Type)) c.numbers.specialize_all(args);
    const auto [positional, keywords] = arguments_for_c(c, args);
    instance = call_native([&] { return type->tp_new(type, positional.get(), keywords.get()); });
  }
  PyTypeObject* const made = Py_TYPE(instance.get());
  if (!PyType_IsSubtype(made, type)) return instance;
  if (made != type) init = c.attributes.type_lookup(made, MAGNETO_STR("__init__"));
  if (!init || !PyFunction_Check(init)) {
    if (tensor || metaclass) return instance;
    if (made->tp_init == PyBaseObject_Type.tp_init) return instance;
    NonResumable scope(c);
    if (c.world.is_outside(instance.get())) {
      c.side_exit(BreakReason::Mutation, std::string("an instance of ") + made->tp_name + " from outside is changed");
    }
    c.numbers.specialize_all(args);
    const auto [positional, keywords] = arguments_for_c(c, args);
    call_native([&]() -> PyObject* {
      return made->tp_init(instance.get(), positional.get(), keywords.get()) < 0 ? nullptr : Py_NewRef(Py_None);
    });
    return instance;
  }
  c.frame->result_override = instance;
  Ref none = call(c.world.wrap(init, c.sources.constant(init)).get(), with_first(instance.get(), args));
  c.frame->result_override = Ref();
  if (none.get() != Py_None) {
    PyErr_Format(PyExc_TypeError, "__init__() should return None, not '%.200s'", Py_TYPE(none.get())->tp_name);
    throw PythonError{};
  }
  return instance;
}

Ref Calls::make_super(const CallArgs& args) {
  PyObject *type = nullptr, *self = nullptr;
  if (args.values.size() == 2) {
    type = args.values[0];
    self = args.values[1];
  } else if (args.values.empty()) {
    const CodeInfo& info = *c.frame->info;
    self = c.frame->slots[0];
    if (self && PyCell_Check(self) && !c.world.is_outside(self)) self = PyCell_GET(self);
    for (int32_t i = 0; i < info.free_count; ++i) {
      const int32_t slot = info.first_free + i;
      if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(info.localsplus_names.get(), slot), "__class__") == 0) {
        type = PyCell_GET(c.frame->slots[slot]);
        if (type) c.world.wrap(type, c.sources.constant(type));
      }
    }
  }
  if (!type || !self) {
    PyErr_SetString(PyExc_RuntimeError, "super(): no arguments");
    throw PythonError{};
  }
  if (c.frame->slots[0] == self && c.frame == &c.frames.root) self = c.frames.read_raw(0).get();
  return checked(PyObject_CallFunctionObjArgs(reinterpret_cast<PyObject*>(&PySuper_Type), type, self, nullptr));
}

}  // namespace magneto::capture
