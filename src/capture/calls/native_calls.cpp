// C code that runs during the capture, and what it is given: truth, iteration, the contents of containers.
#include <Python.h>

#include "capture/calls/special_methods.h"
#include "capture/capture.h"
#include "python/abi/private.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Source;

void Capture::check_sticky() {
  if (!sticky_) return;
  PyErr_Clear();
  std::rethrow_exception(std::exchange(sticky_, nullptr));
}

Ref Capture::call_native(const std::function<PyObject*()>& run) {
  const bool callbacks = std::exchange(callbacks_allowed_, true);
  Ref result = Ref::steal(run());
  callbacks_allowed_ = callbacks;
  check_sticky();
  check_refusal();
  if (!result) throw PythonError{};
  return result;
}

void Capture::check_hashable(PyObject* key) {
  guard_classes(*this, key, Question::Hash, 8);
  call_native([&]() -> PyObject* { return PyObject_Hash(key) == -1 ? nullptr : Py_NewRef(Py_None); });
}

bool Capture::truth(PyObject* value) {
  if (value == Py_True) return true;
  if (value == Py_False || value == Py_None) return false;
  if (is_unknown_number(value)) return known(is_not_zero(value).get()).get() == Py_True;
  if (is_tensor(value)) {
    static PyObject* const bool_type = reinterpret_cast<PyObject*>(&PyBool_Type);
    PyObject* args[] = {value};
    try {
      Ref result = record(graph::TorchNode::Kind::CallFunction, bool_type, args, nullptr,
                          [&] { return PyBool_FromLong(std::max(PyObject_IsTrue(value), 0)); });
      if (PyErr_Occurred()) throw PythonError{};
      return result.get() == Py_True;
    } catch (const SideExit&) {
      if (exit_ && exit_->reason == BreakReason::DataDependentValue) {
        exit_->reason = BreakReason::DataDependentBranch;
        exit_->message = "data-dependent jump";
      }
      throw;
    }
  }
  if (is_array(value)) side_exit(BreakReason::DataDependentBranch, "data-dependent jump");
  Ref object = resolve(value);
  guard_classes(*this, value, Question::Truth, 0);
  if (is_outside(value) && !is_builtin_container(value)) {
    PyTypeObject* type = Py_TYPE(value);
    const bool custom = type_lookup(type, MAGNETO_STR("__bool__")) || type_lookup(type, MAGNETO_STR("__len__"));
    if (!custom) return true;
    if (!is_builtin_container(value)) refuse_opaque(value);
    if (PyDict_Check(value) || PyList_Check(value) || PyTuple_Check(value)) object = contents_of(value);
  }
  Ref result = call_native([&]() -> PyObject* {
    const int truth = PyObject_IsTrue(object.get());
    return truth < 0 ? nullptr : PyBool_FromLong(truth);
  });
  return result.get() == Py_True;
}

bool Capture::assume_true(PyObject* value) {
  if (is_unknown_number(value)) {
    const Ref condition = is_not_zero(value);
    return symbolic_bool_of(condition.get()) ? check_condition(condition.get()) : truth(condition.get());
  }
  if (!is_tensor(value) || fake::known_value(unpack_tensor(value))) return truth(value);
  static constinit Imported check("torch", "_assert_async");
  call(check.get(), {value});
  return true;
}

/// torch._check_tensor_all_with(error_type, cond, message=None). Null: to be interpreted.
Ref Capture::check_tensor_all(const CallArgs& args) {
  if (args.positional() < 2 || !is_fake_tensor(args.values[1])) return {};
  const at::Tensor& condition = unpack_tensor(args.values[1]);
  if (condition.scalar_type() != at::kBool || fake::known_value(condition)) return {};
  NonResumable scope(*this);
  Ref all = call(load_attr(args.values[1], MAGNETO_STR("_is_all_true")).get(), {});
  assume_true(all.get());
  return Ref::borrow(Py_None);
}

Ref Capture::contents_of(PyObject* object) {
  const Source* source = source_of(object);
  if (!source || is_shadow(object)) return Ref::borrow(object);  // a stand-in's length is no longer the original's
  PyTypeObject* type = Py_TYPE(object);
  if (PyObject* iter = type_lookup(type, MAGNETO_STR("__iter__")); iter && PyFunction_Check(iter)) {
    side_exit(BreakReason::OpaqueObject, source->name() + " of type " + type->tp_name + " iterates in its own way");
  }
  if (PyDict_Check(object)) {
    std::vector<PyObject*> keys;
    PyObject *key, *value;
    Py_ssize_t position = 0;
    Ref result = checked(PyODict_Check(object) ? PyODict_New() : PyDict_New());
    while (PyDict_Next(object, &position, &key, &value)) {
      if (!is_scalar(key) && !is_identity_constant(key)) {
        side_exit(BreakReason::OpaqueObject, source->name() + " has keys of type " + Py_TYPE(key)->tp_name);
      }
      keys.push_back(key);
    }
    const InContainer scope(*this);
    guards.dict_keys(source, type, keys);
    for (PyObject* k : keys) {
      Ref item = wrap(PyDict_GetItem(object, k), sources.dict_item(source, k));
      if (PyObject_SetItem(result.get(), k, item.get()) < 0) throw PythonError{};
    }
    if (Overlay* written = find_overlay(object, true)) {
      for (const auto& [name, item] : written->entries) {
        if ((item ? PyObject_SetItem(result.get(), name.get(), item.get())
                  : PyObject_DelItem(result.get(), name.get())) < 0) {
          throw PythonError{};
        }
      }
    }
    return result;
  }
  if (PyList_Check(object) || PyTuple_Check(object)) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
    const InContainer scope(*this);
    guard_length(source, type, size);
    Ref result = checked(PyList_New(size));
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyList_SET_ITEM(result.get(), i,
                      wrap(PySequence_Fast_GET_ITEM(object, i), sources.seq_item(source, i)).release());
    }
    if (PyList_Check(object)) return result;
    Ref tuple = checked(PyList_AsTuple(result.get()));
    if (std::strcmp(type->tp_name, "torch.Size") != 0) return tuple;
    return checked(PyObject_CallOneArg(reinterpret_cast<PyObject*>(type), tuple.get()));
  }
  side_exit(BreakReason::OpaqueObject, source->name() + " is an object of type " + type->tp_name);
}

Ref Capture::iterate(PyObject* value) {
  if (is_tensor(value)) {
    if (Ref items = call_replaced_method(value, MAGNETO_STR("__iter__"))) return items;
    static PyObject* const unbind =
        lookup_in_type(reinterpret_cast<PyTypeObject*>(tensor_class()), MAGNETO_STR("unbind"));
    CallArgs args;
    Ref zero = checked(PyLong_FromLong(0));
    args.values = {value, zero.get()};
    Ref items = call_torch(unbind, args);
    return checked(PyObject_GetIter(items.get()));
  }
  if (is_array(value)) return numpy_items(value);
  Ref object = resolve(value);
  PyTypeObject* type = Py_TYPE(object.get());
  if (type->tp_iter == PyObject_SelfIter && !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return object;
  if (PyObject* method =
          PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) ? type_lookup(type, MAGNETO_STR("__iter__")) : nullptr) {
    if (PyFunction_Check(method)) return call(wrap(method, sources.constant(method)).get(), {object.get()});
  }
  if (is_outside(object.get()) && object.get() == value && !PyType_Check(value) && !is_value(value)) {
    object = contents_of(value);
  }
  return call_native([&] { return PyObject_GetIter(object.get()); });
}

Ref Capture::list_of(PyObject* iterable) {
  NonResumable scope(*this);
  Ref iterator = iterate(iterable);
  refuse_opaque_iterable(iterator.get());
  return call_native([&] { return PySequence_List(iterator.get()); });
}

}  // namespace magneto::capture
