// What can be called, kind by kind: an ordered table, and how each is called in a capture.
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "capture/calls/calls.h"
#include "capture/calls/deferred.h"
#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/marks.h"
#include "capture/numbers/numbers.h"
#include "capture/numpy/made_generators.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Source;

namespace {

bool is_number(PyObject* object) { return is_value(object) && PyNumber_Check(object); }

PyTypeObject* script_function_type() {
  static constinit Imported type("torch.jit", "ScriptFunction");
  return type.type();
}

/// A member descriptor of weak references for what they refer to, for a guard to read it by.
PyObject* weak_referent() {
  static PyMemberDef member = {"__referent__", T_OBJECT, offsetof(PyWeakReference, wr_object), READONLY, nullptr};
  static PyObject* const descriptor = PyDescr_NewMember(weakref_type(), &member);
  return descriptor;
}

}  // namespace

/// In this order: a kind that is no kind of `callable`, or leaves it to the next, gives null.
constexpr Calls::CallableKind Calls::kCallables[] = {
    {"the start or end of a region of errors_on_break", &Calls::call_break_region},
    {"what the user has marked", &Calls::call_marked},
    {"what is put off to the segment's end", &Calls::call_deferred},
    {"a function of NumPy on arrays", &Calls::call_numpy},
    {"a function", &Calls::call_function},
    {"a method", &Calls::call_method},
    {"a class", &Calls::call_class},
    {"a function, method or slot of C code", &Calls::call_c_code},
    {"what we compiled", &Calls::call_compiled},
    {"functools.lru_cache", &Calls::call_cached},
    {"functools.partial", &Calls::call_partial},
    {"operator.itemgetter, attrgetter, methodcaller", &Calls::call_getter},
    {"an operator of PyTorch", &Calls::call_operator},
    {"list[int]", &Calls::call_generic_alias},
    {"a function of TorchScript", &Calls::call_script_function},
    {"a function of NumPy on numbers", &Calls::call_ufunc},
    {"a weak reference", &Calls::call_weak_reference},
    {"an instance", &Calls::call_instance},
};

Ref Calls::call(PyObject* callable, CallArgs args) {
  for (const CallableKind& kind : kCallables) {
    if (Ref result = (this->*kind.call)(callable, args)) return result;
  }
  c.side_exit(BreakReason::OpaqueCall, "call of " + callable_name(callable));
}

Ref Calls::call_break_region(PyObject* callable, CallArgs& args) {
  if (Py_TYPE(callable) != &PyCFunction_Type || PyCFunction_GET_FUNCTION(callable) != errors_on_break) return {};
  checked(errors_on_break(nullptr, args.values.at(0)));  // for what this capture meets next, and in each run
  c.deferred.calls.push_back({Ref::borrow(callable), {Ref::borrow(args.values[0])}, {0}});
  return Ref::borrow(Py_None);
}

Ref Calls::call_deferred(PyObject* callable, CallArgs& args) {
  return c.deferred.defers(callable, args) ? c.deferred.defer(callable, args) : Ref();
}

Ref Calls::call_numpy(PyObject* callable, CallArgs& args) {
  if (Ref made = make_generator(c, callable, args)) return made;
  if (Ref drawn = draw_of_made(c, callable, args)) return drawn;
  if (Ref nothing = shuffle_array(c, callable, args)) return nothing;
  if (Ref drawn = draw_of_numpy(c, callable, args)) return drawn;
  return c.numpy.call_function(callable, args);
}

Ref Calls::call_function(PyObject* callable, CallArgs& args) {
  return Py_IS_TYPE(callable, &PyFunction_Type) ? inline_function(callable, args) : Ref();
}

Ref Calls::call_method(PyObject* callable, CallArgs& args) {
  if (!Py_IS_TYPE(callable, &PyMethod_Type)) return {};
  if (const Source* source = c.world.source_of(callable)) {  // from outside: its parts are read
    Ref function = c.world.wrap(PyMethod_GET_FUNCTION(callable), c.sources.bound_function(source));
    Ref self = c.world.wrap(PyMethod_GET_SELF(callable), c.sources.bound_self(source));
    args.values.insert(args.values.begin(), self.get());
    return call(function.get(), std::move(args));
  }
  args.values.insert(args.values.begin(), PyMethod_GET_SELF(callable));
  return call(PyMethod_GET_FUNCTION(callable), std::move(args));
}

Ref Calls::call_class(PyObject* callable, CallArgs& args) {
  return PyType_Check(callable) ? call_type(reinterpret_cast<PyTypeObject*>(callable), args) : Ref();
}

Ref Calls::call_c_code(PyObject* callable, CallArgs& args) {
  PyTypeObject* const kinds[] = {&PyCFunction_Type,     &PyMethodDescr_Type, &PyWrapperDescr_Type,
                                 method_wrapper_type(), &PyCMethod_Type,     &PyClassMethodDescr_Type};
  return std::ranges::find(kinds, Py_TYPE(callable)) != std::end(kinds) ? call_c_function(callable, args) : Ref();
}

/// Interpreted like the original.
Ref Calls::call_compiled(PyObject* callable, CallArgs& args) {
  PyObject* wrapped = original_of_compiled ? original_of_compiled(callable) : nullptr;
  if (wrapped && compiled.contains(callable)) return call(wrapped, std::move(args));
  return wrapped ? call(c.world.wrap(wrapped, c.sources.constant(wrapped)).get(), std::move(args)) : Ref();
}

Ref Calls::call_partial(PyObject* callable, CallArgs& args) {
  if (std::strcmp(Py_TYPE(callable)->tp_name, "functools.partial") != 0) return {};
  Ref function = c.attributes.load_attr(callable, MAGNETO_STR("func"));
  Ref bound = c.attributes.load_attr(callable, MAGNETO_STR("args"));
  Ref keywords = c.attributes.load_attr(callable, MAGNETO_STR("keywords"));
  Ref bound_values = c.containers.resolve(bound.get());
  Ref keyword_values = c.containers.resolve(keywords.get());
  CallArgs merged;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bound_values.get()); ++i) {
    merged.values.push_back(PyTuple_GET_ITEM(bound_values.get(), i));
  }
  merged.values.insert(merged.values.end(), args.values.begin(), args.values.begin() + args.positional());
  Ref all = checked(PyDict_Copy(keyword_values.get()));
  for (size_t i = 0; i < args.keywords(); ++i) {
    if (PyDict_SetItem(all.get(), PyTuple_GET_ITEM(args.kwnames, i), args.values[args.positional() + i]) < 0) {
      throw PythonError{};
    }
  }
  Ref names = checked(PySequence_Tuple(all.get()));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names.get()); ++i) {
    merged.values.push_back(PyDict_GetItem(all.get(), PyTuple_GET_ITEM(names.get(), i)));
  }
  merged.kwnames = PyTuple_GET_SIZE(names.get()) ? names.get() : nullptr;
  return call(function.get(), std::move(merged));
}

/// operator.itemgetter, attrgetter and methodcaller, which C code would apply to originals.
Ref Calls::call_getter(PyObject* getter, CallArgs& args) {
  if (std::strncmp(Py_TYPE(getter)->tp_name, "operator.", 9) != 0) return {};
  Ref reduced = checked(PyObject_CallMethod(getter, "__reduce__", nullptr));
  PyObject* parts = PyTuple_GET_ITEM(reduced.get(), 1);
  const Py_ssize_t count = PyTuple_GET_SIZE(parts);
  const std::string kind = Py_TYPE(getter)->tp_name + 9;
  if (args.values.size() != 1) c.side_exit(BreakReason::OpaqueCall, "call of an object of type operator." + kind);
  // A methodcaller with keywords says that it is made by a partial of its class, which has them and the name.
  PyObject* const maker = PyTuple_GET_ITEM(reduced.get(), 0);
  Ref name, keywords;
  if (maker != reinterpret_cast<PyObject*>(Py_TYPE(getter))) {
    keywords = checked(PyObject_GetAttrString(maker, "keywords"));
    name = Ref::borrow(PyTuple_GetItem(checked(PyObject_GetAttrString(maker, "args")).get(), 0));
  }
  NonResumable scope(c);
  PyObject* object = args.values[0];
  auto held = [&](PyObject* item) {
    return c.world.is_outside(getter) ? c.world.wrap(item, c.sources.constant(item)) : Ref::borrow(item);
  };
  auto part = [&](Py_ssize_t i) { return held(PyTuple_GET_ITEM(parts, i)); };
  if (kind == "methodcaller") {
    Ref method = c.attributes.load_attr(object, name ? name.get() : part(0).get());
    std::vector<Ref> values;
    CallArgs rest;
    for (Py_ssize_t i = name ? 0 : 1; i < count; ++i) values.push_back(part(i));
    const Ref names = keywords ? checked(PySequence_Tuple(keywords.get())) : Ref();
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names.get()); ++i) {
      values.push_back(held(PyDict_GetItem(keywords.get(), PyTuple_GET_ITEM(names.get(), i))));
    }
    for (const Ref& value : values) rest.values.push_back(value.get());
    rest.kwnames = names.get();
    return call(method.get(), std::move(rest));
  }
  auto get = [&](PyObject* what) {
    if (kind == "itemgetter") return c.protocol.subscript(object, what);
    Ref value = Ref::borrow(object);
    Ref names = checked(PyUnicode_Split(what, MAGNETO_STR("."), -1));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(names.get()); ++i) {
      PyObject* name = Py_NewRef(PyList_GET_ITEM(names.get(), i));
      PyUnicode_InternInPlace(&name);
      value = c.attributes.load_attr(value.get(), Ref::steal(name).get());
    }
    return value;
  };
  if (count == 1) return get(part(0).get());
  Ref all = checked(PyTuple_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(all.get(), i, get(part(i).get()).release());
  return all;
}

Ref Calls::call_operator(PyObject* callable, CallArgs& args) {
  static constinit Imported script_overload("torch._ops", "TorchBindOpOverload");
  PyTypeObject* type = Py_TYPE(callable);
  if (!is_operator_type(type) && type != script_overload.type()) return {};
  if (Ref label = c.torch.profiler_label(callable, args)) return label;
  return is_operator_type(type) ? c.torch.call_torch(callable, args) : Ref();
}

Ref Calls::call_generic_alias(PyObject* callable, CallArgs& args) {
  if (!Py_IS_TYPE(callable, &Py_GenericAliasType)) return {};
  Ref origin = c.attributes.load_attr(callable, MAGNETO_STR("__origin__"));
  const bool is_builtin = PyType_Check(origin.get()) &&
                          !PyType_HasFeature(reinterpret_cast<PyTypeObject*>(origin.get()), Py_TPFLAGS_HEAPTYPE);
  return is_builtin ? call(origin.get(), std::move(args)) : Ref();
}

Ref Calls::call_script_function(PyObject* callable, CallArgs& args) {
  return Py_IS_TYPE(callable, script_function_type()) ? c.torch.call_script_function(callable, args) : Ref();
}

/// With numbers: that gives a number of NumPy, or warns and gives no finite one.
Ref Calls::call_ufunc(PyObject* callable, CallArgs& args) {
  if (std::strcmp(Py_TYPE(callable)->tp_name, "numpy.ufunc") != 0) return {};
  c.numbers.specialize_all(args);
  if (args.kwnames || !std::ranges::all_of(args.values, is_number)) return {};
  Ref result =
      call_native([&] { return PyObject_Vectorcall(callable, args.values.data(), args.values.size(), nullptr); });
  Ref number = is_value(result.get()) ? Ref::steal(PyNumber_Float(result.get())) : Ref();
  if (number && std::isfinite(PyFloat_AS_DOUBLE(number.get()))) return result;
  c.side_exit(BreakReason::OpaqueCall, "call of " + callable_name(callable));
}

namespace {

/// A variable has it: what else may hold a tensor, the capture does not follow.
bool is_in_a_frame(const Capture& c, PyObject* object) {
  for (InterpFrame* frame = c.frame; frame; frame = frame->caller) {
    const std::span slots(frame->slots, frame->info->nlocals + frame->depth);
    if (std::ranges::find(slots, object) != slots.end()) return true;
  }
  return false;
}

/// ...an object from outside, or what stands for it.
bool is_held(const Capture& c, PyObject* object) {
  const auto tensor = c.tensors.fake_of.find(object);
  if (tensor != c.tensors.fake_of.end()) return is_in_a_frame(c, tensor->second.get());
  const auto container = c.containers.shadows.find(object);
  if (container != c.containers.shadows.end() && is_in_a_frame(c, container->second.object.get())) return true;
  return is_in_a_frame(c, object);
}

/// The program asks only whether the reference's object is a tensor that the segment has made: `reference() is x`.
bool is_compared_with_made(const Capture& c) {
  const InterpFrame& f = *c.frame;
  const Instr& load = f.info->instrs[f.instr().next];
  if (!f.result_is_pushed || load.op != Op::LOAD_FAST) return false;
  if (f.info->instrs[load.next].op != Op::IS_OP) return false;
  PyObject* other = f.slots[load.arg];
  return other && is_fake_tensor(other) && !c.tensors.is_input(other);
}

}  // namespace

Ref Calls::call_weak_reference(PyObject* callable, CallArgs& args) {
  if (!PyWeakref_CheckRef(callable) || !args.values.empty()) return {};
  PyObject* method = c.attributes.type_lookup(Py_TYPE(callable), MAGNETO_STR("__call__"));
  if (!method || PyFunction_Check(method)) return {};
  const Source* source = c.world.source_of(callable);
  if (source && is_compared_with_made(c)) return Ref::borrow(Py_None);  // which is another one, too
  if (c.world.dropped_referents.contains(PyWeakref_GET_OBJECT(callable))) {
    c.side_exit(BreakReason::Finalizer, "a weak reference is asked for an object that was dropped");
  }
  if (!source) {  // made here
    PyObject* referent = PyWeakref_GET_OBJECT(callable);
    if (is_tensor(referent) && !is_in_a_frame(c, referent)) {
      if (is_compared_with_made(c)) return Ref::borrow(Py_None);
      c.side_exit(BreakReason::Finalizer, "a weak reference is asked for a tensor that may have been dropped");
    }
    return Ref::borrow(referent);
  }
  if (!is_held(c, PyWeakref_GET_OBJECT(callable)) && has_let_go(c)) {
    c.side_exit(BreakReason::Finalizer, "a weak reference is asked behind a write that may have dropped its object");
  }
  return c.world.wrap(PyWeakref_GET_OBJECT(callable), c.sources.slot(source, weak_referent()));
}

Ref Calls::call_instance(PyObject* callable, CallArgs& args) {
  PyTypeObject* type = Py_TYPE(callable);
  PyObject* method = c.attributes.type_lookup(type, MAGNETO_STR("__call__"));
  if (!method) {
    PyErr_Format(PyExc_TypeError, "'%.200s' object is not callable", type->tp_name);
    throw PythonError{};
  }
  if (!PyFunction_Check(method)) return {};
  args.values.insert(args.values.begin(), callable);
  return call(c.world.wrap(method, c.sources.constant(method)).get(), std::move(args));
}

}  // namespace magneto::capture
