// What C code gets to read and to call. It looks into containers and calls functions without asking the capture: so
// what is in them is guarded beforehand, all the way down, and what it calls goes through the capture.
#include <string_view>

#include "capture/calls/callbacks.h"
#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/interpreter/errors.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/strings.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "guards/objects.h"
#include "python/abi/types.h"

namespace magneto::capture {

namespace {

/// How deep C code is believed to look into what was made during the capture.
constexpr int kDeepestContents = 8;

bool holds_tensor(PyObject* value, int depth) {
  if (is_tensor(value)) return true;
  if (depth == 0) return false;
  if (Py_TYPE(value) == guards::deque_type()) return holds_tensor(checked(PySequence_List(value)).get(), depth);
  if (PyTuple_Check(value) || PyList_Check(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      if (holds_tensor(PySequence_Fast_GET_ITEM(value, i), depth - 1)) return true;
    }
  } else if (PyDict_Check(value)) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &item)) {
      if (holds_tensor(key, 0) || holds_tensor(item, depth - 1)) return true;
    }
  }
  return false;
}

/// What stands for a number among the contents is not in the original.
void know_numbers(Capture& capture, PyObject* value, int depth) {
  if (is_unknown_number(value)) capture.numbers.known(value);
  if (depth == 0) return;
  if (PyTuple_Check(value) || PyList_Check(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      know_numbers(capture, PySequence_Fast_GET_ITEM(value, i), depth - 1);
    }
  } else if (PyDict_Check(value)) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &item)) know_numbers(capture, item, depth - 1);
  }
}

/// C code reads a container from outside itself, not its stand-in: right as long as all that is in it is guarded, is
/// unchanged, and has no fake.
void guard_original(Capture& capture, PyObject* original) {
  const bool derived = is_derived_container(original);
  Ref contents = derived ? capture.containers.contents_of(original) : capture.containers.resolve_deep(original);
  Ref holder = checked(PyTuple_Pack(1, original));
  if (capture.containers.holds_changed(holder.get(), 0)) {
    capture.side_exit(BreakReason::OpaqueObject, "C code reads a container that has been changed");
  }
  if (holds_tensor(contents.get(), kDeepestContents)) {
    capture.side_exit(BreakReason::OpaqueObject, "C code reads a container that holds tensors");
  }
  know_numbers(capture, contents.get(), kDeepestContents);
  capture.containers.refuse_opaque(contents.get(), kDeepestContents);
}

/// Iterators and views of C code: what they read is what they refer to.
bool is_reader(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || !type->tp_traverse || PyGen_CheckExact(object)) return false;
  return PyIter_Check(object) || PyDictViewSet_Check(object) || type == &PyDictValues_Type;
}

}  // namespace

void Containers::refuse_opaque(PyObject* object, int depth) {
  if (!object || is_scalar(object) || is_tensor(object)) return;
  if (answers_by_itself(object)) return;
  if (is_unknown_number(object)) c.numbers.need(object);
  if (PyWeakref_Check(object) && is_tensor(PyWeakref_GET_OBJECT(object))) {
    c.side_exit(BreakReason::OpaqueObject, "the value of a weak reference to a tensor is read");
  }
  if (is_array_stand_in(object)) c.side_exit(BreakReason::OpaqueObject, "the contents of an array of NumPy are read");
  const bool view = is_dict_view(object);
  const Ref seen = view ? resolve(object) : Ref();
  if (view) object = seen.get();
  const bool view_of_stand_in = view && is_shadow(object);
  if (c.world.is_opaque(object) && !view_of_stand_in) {
    c.side_exit(BreakReason::OpaqueObject,
                std::string("the value of an object of type ") + Py_TYPE(object)->tp_name + " is read");
  }
  const bool container = is_builtin_container(object) || is_derived_container(object);
  if (container && c.world.is_outside(object) && !is_shadow(object)) return guard_original(c, object);
  if (depth == 0) return;
  if (PyTuple_Check(object) || PyList_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      refuse_opaque(PySequence_Fast_GET_ITEM(object, i), depth - 1);
    }
  } else if (PyDict_Check(object)) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(object, &position, &key, &value)) {
      refuse_opaque(key, depth - 1);
      refuse_opaque(value, depth - 1);
    }
  } else if (Py_TYPE(object) == guards::deque_type()) {
    refuse_opaque(checked(PySequence_List(object)).get(), depth);
  } else if (PySlice_Check(object)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(object);
    for (PyObject* part : {slice->start, slice->stop, slice->step}) refuse_opaque(part, depth - 1);
  } else if (view_of_stand_in || (!c.world.is_outside(object) && is_reader(object))) {
    for (PyObject* referent : referents(object)) {
      if (is_builtin_container(referent) || is_reader(referent)) refuse_opaque(referent, depth);
    }
  }
}

// -- functions that C code calls -------------------------------------------------------------------------------------

namespace {

PyObject* call_back(PyObject* target, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  Capture* capture = Capture::current();
  if (!capture || !capture->frame) return PyObject_Vectorcall(target, args, count, kwnames);
  return capture->callbacks.call_from_c(target, args, count, kwnames);
}

PyMethodDef call_back_definition = {"callback", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_back)),
                                    METH_FASTCALL | METH_KEYWORDS,
                                    "Calls what it is bound to through the capture that runs."};

}  // namespace

PyObject* callback_target(PyObject* function) {
  if (!PyCFunction_CheckExact(function)) return nullptr;
  auto* object = reinterpret_cast<PyCFunctionObject*>(function);
  return object->m_ml == &call_back_definition ? object->m_self : nullptr;
}

Ref Callbacks::callback(PyObject* callable) {
  PyTypeObject* type = Py_TYPE(callable);
  const std::string_view name = type->tp_name;
  const bool calls_c = PyCFunction_Check(callable) || PyType_Check(callable) || type == &PyMethodDescr_Type ||
                       type == &PyWrapperDescr_Type || type == &PyClassMethodDescr_Type || PyMethod_Check(callable) ||
                       type == method_wrapper_type() || name == "functools.partial" || name.starts_with("operator.") ||
                       name == "functools._lru_cache_wrapper" || is_python_class(type) ||
                       (original_of_compiled && original_of_compiled(callable));
  if (!calls_c || callback_target(callable)) return Ref::borrow(callable);
  return checked(PyCFunction_NewEx(&call_back_definition, callable, nullptr));
}

Ref Callbacks::returned_to_c(Ref value, bool yielded) {
  PyObject* object = value.get();
  if (is_symbolic_string(object)) c.strings.need_text(object);
  if (is_builtin_container(object)) {
    value = c.containers.resolve_deep(object);
    if (c.world.is_outside(object)) return value;
  }
  const bool sequence = PyTuple_CheckExact(object) || PyList_CheckExact(object);
  if (!yielded && (sequence || c.world.is_opaque(object))) c.containers.refuse_opaque(object, 2);
  return value;
}

PyObject* Callbacks::call_from_c(PyObject* callable, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  if (c.errors.sticky) return c.errors.interrupt_c_code(c.errors.sticky);
  if (!c.mode.callbacks_allowed) {
    if (!c.mode.recording) return PyObject_Vectorcall(callable, args, count, kwnames);
    return c.errors.interrupt_c_code(
        std::make_exception_ptr(c.exits.restart_before(*c.frame, "a torch function calls " + callable_name(callable))));
  }
  const NativeScope scope(c.mode);
  c.mode.callbacks_allowed = false;
  if (!c.mode.called_back_from) c.mode.called_back_from = c.frame;
  Ref result;
  try {
    NonResumable non_resumable(c);
    CallArgs values;
    values.values.assign(args, args + count + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0));
    values.kwnames = kwnames;
    result = returned_to_c(c.calls.call(callable, std::move(values)), /*yielded=*/false);
  } catch (const PythonError&) {
  } catch (...) {
    c.errors.interrupt_c_code(std::current_exception());
  }
  return result.release();
}

}  // namespace magneto::capture
