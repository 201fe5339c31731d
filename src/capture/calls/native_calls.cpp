// C code that runs during the capture, and what it is given: truth, iteration, the contents of containers.
#include <Python.h>

#include "capture/calls/calls.h"
#include "capture/calls/native_mode.h"
#include "capture/calls/special_methods.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/numbers/drafts.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/numbers/tried_numbers.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "guards/objects.h"
#include "python/abi/private.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Source;

Ref Calls::call_native(const std::function<PyObject*()>& run) {
  const NativeScope until_checked(c.mode);
  c.mode.native_from = c.frame;
  ++natives_run;
  Ref result;
  {
    const NativeScope scope(c.mode);
    c.mode.callbacks_allowed = true;
    result = Ref::steal(run());
  }
  c.errors.check_sticky();
  c.torch.check_refusal();
  if (!result) throw PythonError{};
  return result;
}

void ObjectProtocol::check_hashable(PyObject* key) {
  guard_classes(c, key, Question::Hash, 8);
  c.calls.call_native([&]() -> PyObject* { return PyObject_Hash(key) == -1 ? nullptr : Py_NewRef(Py_None); });
}

namespace {

/// The data that are needed are those of a condition.
void call_jump(BreakReason& reason, std::string& message) {
  if (reason != BreakReason::DataDependentValue) return;
  reason = BreakReason::DataDependentBranch;
  message = "data-dependent jump";
}

}  // namespace

bool ObjectProtocol::truth(PyObject* value) {
  if (value == Py_True) return true;
  if (value == Py_False || value == Py_None) return false;
  if (is_unknown_number(value)) return c.numbers.known(c.numbers.is_not_zero(value).get()).get() == Py_True;
  if (is_tensor(value)) {
    if (const Ref now = truth_of_state(c, value)) return now.get() == Py_True;
    if (const std::optional<bool> now = drafts::truth(c, value)) return *now;
    if (const Ref usual = usual_truth(c, value)) return usual.get() == Py_True;
    static PyObject* const bool_type = reinterpret_cast<PyObject*>(&PyBool_Type);
    PyObject* args[] = {value};
    try {
      Ref result = c.torch.record(graph::TorchNode::Kind::CallFunction, bool_type, args, nullptr,
                                  [&] { return PyBool_FromLong(std::max(PyObject_IsTrue(value), 0)); });
      if (PyErr_Occurred()) throw PythonError{};
      return result.get() == Py_True;
    } catch (const SideExit&) {
      if (c.exits.exit) call_jump(c.exits.exit->reason, c.exits.exit->message);
      throw;
    } catch (const Restart&) {
      call_jump(c.exits.restart.second.reason, c.exits.restart.second.message);
      throw;
    }
  }
  if (is_array(value)) c.side_exit(BreakReason::DataDependentBranch, "data-dependent jump");
  Ref object = c.containers.resolve(value);
  guard_classes(c, value, Question::Truth, 0);
  if (c.world.is_outside(value) && !is_builtin_container(value)) {
    PyTypeObject* type = Py_TYPE(value);
    PyObject* method = c.attributes.type_lookup(type, MAGNETO_STR("__bool__"));
    if (!method) method = c.attributes.type_lookup(type, MAGNETO_STR("__len__"));
    if (!method) return true;
    if (!PyFunction_Check(method) && is_derived_container(value)) object = c.containers.contents_of(value);
    c.containers.refuse_opaque(object.get());
  }
  Ref result = c.calls.call_native([&]() -> PyObject* {
    const int truth = PyObject_IsTrue(object.get());
    return truth < 0 ? nullptr : PyBool_FromLong(truth);
  });
  return result.get() == Py_True;
}

bool ObjectProtocol::assume_true(PyObject* value) {
  if (is_unknown_number(value)) {
    const Ref condition = c.numbers.is_not_zero(value);
    return symbolic_bool_of(condition.get()) ? c.symbols.check_condition(condition.get()) : truth(condition.get());
  }
  if (!is_tensor(value) || fake::known_value(unpack_tensor(value))) return truth(value);
  static constinit Imported check("torch", "_assert_async");
  c.calls.call(check.get(), {value});
  return true;
}

/// torch._check_tensor_all_with(error_type, cond, message=None). Null: to be interpreted.
Ref Calls::check_tensor_all(const CallArgs& args) {
  if (args.positional() < 2 || !is_fake_tensor(args.values[1])) return {};
  const at::Tensor& condition = unpack_tensor(args.values[1]);
  if (condition.scalar_type() != at::kBool || fake::known_value(condition)) return {};
  NonResumable scope(c);
  Ref all = call(c.attributes.load_attr(args.values[1], MAGNETO_STR("_is_all_true")).get(), {});
  c.protocol.assume_true(all.get());
  return Ref::borrow(Py_None);
}

Ref Containers::contents_of(PyObject* object) {
  const Source* source = c.world.source_of(object);
  if (!source || is_shadow(object)) return Ref::borrow(object);  // a stand-in's length is no longer the original's
  if (auto known = shadows.find(object); known != shadows.end()) return known->second.object;
  PyTypeObject* type = Py_TYPE(object);
  const auto stands_for = [&](Ref contents) {
    shadows[object] = {Ref::borrow(object), contents, /*dirty=*/false};
    shadow_original[contents.get()] = object;
    return contents;
  };
  if (PyObject* iter = c.attributes.type_lookup(type, MAGNETO_STR("__iter__")); iter && PyFunction_Check(iter)) {
    c.side_exit(BreakReason::OpaqueObject, source->name() + " of type " + type->tp_name + " iterates in its own way");
  }
  if (PyDict_Check(object)) {
    std::vector<PyObject*> keys;
    const bool ordered = PyODict_Check(object);  // in an order of its own
    Ref result = checked(ordered ? PyODict_New() : PyDict_New());
    const Ref iterator = checked((ordered ? PyODict_Type : PyDict_Type).tp_iter(object));
    const Ref order = checked(PySequence_List(iterator.get()));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(order.get()); ++i) {
      PyObject* key = PyList_GET_ITEM(order.get(), i);
      if (!is_scalar(key) && !is_identity_constant(key)) {
        c.side_exit(BreakReason::OpaqueObject, source->name() + " has keys of type " + Py_TYPE(key)->tp_name);
      }
      keys.push_back(key);
    }
    const InContainer scope(c.containers);
    c.guards.dict_keys(source, type, keys);
    for (PyObject* k : keys) {
      Ref item = c.world.wrap(PyDict_GetItem(object, k), c.sources.dict_item(source, k));
      if (PyObject_SetItem(result.get(), k, item.get()) < 0) throw PythonError{};
    }
    if (Overlay* written = c.overlays.find(object, true)) {
      for (const auto& [name, item] : written->entries) {
        if ((item ? PyObject_SetItem(result.get(), name.get(), item.get())
                  : PyObject_DelItem(result.get(), name.get())) < 0) {
          throw PythonError{};
        }
      }
    }
    return stands_for(std::move(result));
  }
  if (PyList_Check(object) || PyTuple_Check(object)) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
    const InContainer scope(c.containers);
    c.numbers.guard_length(source, type, size);
    Ref result = checked(PyList_New(size));
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyList_SET_ITEM(result.get(), i,
                      c.world.wrap(PySequence_Fast_GET_ITEM(object, i), c.sources.seq_item(source, i)).release());
    }
    if (PyList_Check(object)) return stands_for(std::move(result));
    Ref tuple = checked(PyList_AsTuple(result.get()));
    if (std::strcmp(type->tp_name, "torch.Size") != 0) return tuple;
    return checked(PyObject_CallOneArg(reinterpret_cast<PyObject*>(type), tuple.get()));
  }
  const InContainer scope(c.containers);
  if (PyAnySet_Check(object)) return stands_for(stand_in_of_set(object, source));
  if (PyObject_TypeCheck(object, guards::deque_type())) return stands_for(stand_in_of_deque(object, source));
  c.side_exit(BreakReason::OpaqueObject, source->name() + " is an object of type " + type->tp_name);
}

Ref ObjectProtocol::iterate(PyObject* value) {
  if (is_tensor(value)) {
    if (Ref items = c.calls.call_replaced_method(value, MAGNETO_STR("__iter__"))) return items;
    c.symbols.require_length(value);
    static PyObject* const unbind =
        lookup_in_type(reinterpret_cast<PyTypeObject*>(tensor_class()), MAGNETO_STR("unbind"));
    CallArgs args;
    Ref zero = checked(PyLong_FromLong(0));
    args.values = {value, zero.get()};
    Ref items = c.torch.call_torch(unbind, args);
    return checked(PyObject_GetIter(items.get()));
  }
  if (is_array(value)) return c.numpy.items(value);
  Ref object = c.containers.resolve(value);
  PyTypeObject* type = Py_TYPE(object.get());
  if (type->tp_iter == PyObject_SelfIter && !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return object;
  if (PyObject* method = PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)
                             ? c.attributes.type_lookup(type, MAGNETO_STR("__iter__"))
                             : nullptr) {
    if (PyFunction_Check(method))
      return c.calls.call(c.world.wrap(method, c.sources.constant(method)).get(), {object.get()});
  }
  if (c.world.is_outside(object.get()) && object.get() == value && !PyType_Check(value) && !is_value(value)) {
    object = c.containers.contents_of(value);
  }
  return c.calls.call_native([&] { return PyObject_GetIter(object.get()); });
}

Ref ObjectProtocol::list_of(PyObject* iterable) {
  NonResumable scope(c);
  Ref iterator = iterate(iterable);
  c.containers.refuse_opaque_iterable(iterator.get());
  return c.calls.call_native([&] { return PySequence_List(iterator.get()); });
}

}  // namespace magneto::capture
