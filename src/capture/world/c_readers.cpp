// What C code gets to read and to call. It looks into containers and calls functions without asking the capture: so
// what is in them is guarded beforehand, all the way down, and what it calls goes through the capture.
#include <string_view>

#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "python/abi/types.h"

namespace magneto::capture {

namespace {

/// How deep C code is believed to look into what was made during the capture.
constexpr int kDeepest = 8;

bool holds_tensor(PyObject* value, int depth) {
  if (is_tensor(value)) return true;
  if (depth == 0) return false;
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
  if (is_unknown_number(value)) capture.known(value);
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
  if (derived && PyAnySet_Check(original)) {
    capture.side_exit(BreakReason::OpaqueObject, std::string("C code reads a ") + Py_TYPE(original)->tp_name);
  }
  Ref contents = derived ? capture.contents_of(original) : capture.resolve_deep(original);
  Ref holder = checked(PyTuple_Pack(1, original));
  if (capture.holds_changed(holder.get(), 0)) {
    capture.side_exit(BreakReason::OpaqueObject, "C code reads a container that has been changed");
  }
  if (holds_tensor(contents.get(), kDeepest)) {
    capture.side_exit(BreakReason::OpaqueObject, "C code reads a container that holds tensors");
  }
  know_numbers(capture, contents.get(), kDeepest);
  capture.refuse_opaque(contents.get(), kDeepest);
}

/// Iterators and views of C code: what they read is what they refer to.
bool is_reader(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || !type->tp_traverse || PyGen_CheckExact(object)) return false;
  return PyIter_Check(object) || PyDictViewSet_Check(object) || type == &PyDictValues_Type;
}

}  // namespace

void Capture::refuse_opaque(PyObject* object, int depth) {
  if (!object || is_scalar(object) || is_tensor(object)) return;
  if (answers_by_itself(object)) return;
  if (is_unknown_number(object)) need(object);
  if (is_array_stand_in(object)) side_exit(BreakReason::OpaqueObject, "the contents of an array of NumPy are read");
  const bool view = is_dict_view(object);
  const Ref seen = view ? resolve(object) : Ref();
  if (view) object = seen.get();
  const bool view_of_stand_in = view && is_shadow(object);
  if (is_opaque(object) && !view_of_stand_in) {
    side_exit(BreakReason::OpaqueObject,
              std::string("the value of an object of type ") + Py_TYPE(object)->tp_name + " is read");
  }
  const bool container = is_builtin_container(object) || is_derived_container(object);
  if (container && is_outside(object) && !is_shadow(object)) return guard_original(*this, object);
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
  } else if (PySlice_Check(object)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(object);
    for (PyObject* part : {slice->start, slice->stop, slice->step}) refuse_opaque(part, depth - 1);
  } else if (view_of_stand_in || (!is_outside(object) && is_reader(object))) {
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
  return capture->call_from_c(target, args, count, kwnames);
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

Ref Capture::callback(PyObject* callable) {
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

Ref Capture::returned_to_c(Ref value, bool yielded) {
  PyObject* object = value.get();
  if (is_symbolic_string(object)) need_text(object);
  if (is_builtin_container(object)) {
    value = resolve_deep(object);
    if (is_outside(object)) return value;
  }
  const bool sequence = PyTuple_CheckExact(object) || PyList_CheckExact(object);
  if (!yielded && (sequence || is_opaque(object))) refuse_opaque(object, 2);
  return value;
}

PyObject* Capture::call_from_c(PyObject* callable, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  if (sticky_) return interrupt_c_code(sticky_);
  if (!callbacks_allowed_) {
    if (!recording_) return PyObject_Vectorcall(callable, args, count, kwnames);
    return interrupt_c_code(
        std::make_exception_ptr(restart_before(*frame, "a torch function calls " + callable_name(callable))));
  }
  const bool callbacks = std::exchange(callbacks_allowed_, false);
  const InterpFrame* outer = called_back_from_;
  if (!outer) called_back_from_ = frame;
  Ref result;
  try {
    NonResumable scope(*this);
    CallArgs values;
    values.values.assign(args, args + count + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0));
    values.kwnames = kwnames;
    result = returned_to_c(call(callable, std::move(values)), /*yielded=*/false);
  } catch (const PythonError&) {
  } catch (...) {
    interrupt_c_code(std::current_exception());
  }
  called_back_from_ = outer;
  callbacks_allowed_ = callbacks;
  return result.release();
}

}  // namespace magneto::capture
