#include "capture/torch/distributed_tensors.h"

#include <ATen/core/grad_mode.h>

#include <string_view>
#include <utility>

#include "capture/calls/native_mode.h"
#include "capture/interpreter/errors.h"
#include "capture/numbers/symbols.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/modules.h"
#include "capture/world/world.h"
#include "fake/class_dispatch.h"
#include "fake/session.h"
#include "fake/weighed_sizes.h"
#include "python/abi/dicts.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/dtensor.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// The descriptor of a slot.
PyObject* slot_of(PyTypeObject* type, const char* name) {
  PyObject* found = PyDict_GetItemString(type_dict(type), name);
  if (!found) throw std::runtime_error("DTensor has no slot of that name");
  return found;
}

Ref read(PyObject* tensor, const char* name) {
  PyObject* slot = slot_of(Py_TYPE(tensor), name);
  return checked(Py_TYPE(slot)->tp_descr_get(slot, tensor, reinterpret_cast<PyObject*>(Py_TYPE(tensor))));
}

void write(PyObject* tensor, const char* name, PyObject* value) {
  PyObject* slot = slot_of(Py_TYPE(tensor), name);
  if (Py_TYPE(slot)->tp_descr_set(slot, tensor, value) < 0) throw PythonError{};
}

thread_local Capture* dispatching = nullptr;

/// Calls the function outside of the capture: it works on descriptions alone.
PyObject* call_outside(PyObject*, PyObject* function) {
  Ref result;
  dispatching->run_suspended([&] { result = Ref::steal(PyObject_CallNoArgs(function)); });
  return result.release();
}

/// What the function gives, which looks at what operators come to on stand-ins as large as the whole tensors are. They
/// are none of the graph's.
PyObject* call_aside(PyObject*, PyObject* function) {
  const fake::Session::Mark before = dispatching->session->mark();
  Ref result = Ref::steal(PyObject_CallNoArgs(function));
  dispatching->session->rollback(before);
  return result.release();
}

std::string taken_error() {
  const Ref error = take_error();
  const Ref words = error ? Ref::steal(PyObject_Str(error.get())) : Ref();
  if (!words) PyErr_Clear();
  const std::string text = words ? PyUnicode_AsUTF8(words.get()) : "";
  return text.substr(0, text.find('\n'));
}

}  // namespace

PyObject* local_tensor_of(PyObject* tensor) { return read(tensor, "_local_tensor").get(); }
PyObject* description_of(PyObject* tensor) { return read(tensor, "_spec").get(); }

void fill_distributed(Capture& capture, PyObject* raw, PyObject* stand_in, const guards::Source* source) {
  const auto refuse = [&](const std::string& why) {
    capture.side_exit(BreakReason::UnsupportedTensor, source->name() + " is a DTensor " + why);
  };
  PyTypeObject* const type = Py_TYPE(raw);
  const Ref real_local = read(raw, "_local_tensor"), description = read(raw, "_spec");
  const Ref local = capture.world.wrap(real_local.get(), capture.sources.slot(source, slot_of(type, "_local_tensor")));
  if (!is_fake_tensor(local.get())) refuse("of a tensor that is no plain one");
  const Ref known = capture.world.wrap(description.get(), capture.sources.slot(source, slot_of(type, "_spec")));
  const Ref mesh = capture.attributes.load_attr(known.get(), MAGNETO_STR("mesh"));
  if (const guards::Source* of_mesh = capture.world.source_of(mesh.get())) {
    capture.guards.identity(of_mesh, mesh.get());
  }
  const Ref placements = capture.attributes.load_attr(known.get(), MAGNETO_STR("placements"));
  const Ref each = capture.containers.readable(placements.get());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(each.get()); ++i) {
    if (!is_value(PyTuple_GET_ITEM(each.get(), i))) refuse("placed in a way that guards can't compare");
  }
  static constinit Imported usual("magneto._dtensor", "has_usual_order");
  if (checked(PyObject_CallOneArg(usual.get(), description.get())).get() != Py_True) refuse("with an order of shards");
  write(stand_in, "_local_tensor", local.get());
  write(stand_in, "_spec", description.get());
}

bool note_distributed(Capture& capture, PyObject* object) {
  if (!object) return false;
  bool found = false;
  if (PyTuple_Check(object) || PyList_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      found |= note_distributed(capture, PySequence_Fast_GET_ITEM(object, i));
    }
  }
  if (!is_dtensor(Py_TYPE(object))) return found;
  auto& known = capture.tensors.of_classes;
  if (!known.contains(object)) known[object] = {Ref::borrow(object), {}, nullptr, {}, {}};
  return true;
}

void pass_distributed(Capture& capture, PyObject* result, const std::function<void()>& forget) {
  const bool several = PyTuple_Check(result) || PyList_Check(result);
  if (!at::GradMode::is_enabled() || !(several || is_dtensor(Py_TYPE(result)))) return;
  NativeScope scope(capture.mode);
  capture.mode.recording = true;
  try {
    if (!several) {
      if (unpack_tensor(result).requires_grad()) capture.gradients.pass_class(result);
      return;
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(result); ++i) {
      pass_distributed(capture, PySequence_Fast_GET_ITEM(result, i), [] {});
    }
  } catch (...) {
    forget();
    throw;
  }
}

Ref dispatch_distributed(Capture& capture, PyObject* op, PyObject* args, PyObject* kwargs, std::string& why) {
  static PyMethodDef definition = {"call_outside", &call_outside, METH_O, nullptr};
  static PyObject* const outside = PyCFunction_New(&definition, nullptr);
  static PyMethodDef of_whole = {"call_aside", &call_aside, METH_O, nullptr};
  static PyObject* const aside = PyCFunction_New(&of_whole, nullptr);
  static constinit Imported dispatch("magneto._dtensor", "dispatch");
  Ref result;
  {
    NativeScope scope(capture.mode);
    capture.mode.callbacks_allowed = false;
    capture.mode.recording = capture.mode.trusted = true;
    capture.mode.engine_runs = false;
    const fake::Planning planning(*capture.session);
    Capture* const outer = std::exchange(dispatching, &capture);
    result = Ref::steal(PyObject_CallFunctionObjArgs(dispatch.get(), op, args, kwargs, outside, aside, nullptr));
    dispatching = outer;
  }
  if (!result && capture.session->impl().has_symbols && !std::exchange(capture.feedback.fixed_sizes, true)) {
    PyErr_Clear();  // it asks for plain numbers
    throw Retry{};
  }
  if (!result) {
    why = "its dispatch raises " + taken_error();
  } else if (result.get() == Py_NotImplemented) {
    why = "its dispatch does more than calling operators";
    result = Ref();
  } else {
    note_distributed(capture, result.get());
  }
  return result;
}

Ref local_with_history(Capture& capture, PyObject* tensor) {
  static constinit Imported type("torch.distributed.tensor", "DTensor");
  static PyObject* const to_local = PyObject_GetAttrString(type.get(), "to_local");
  const c10::AutoGradMode with_grad(true);
  CallArgs args;
  args.values = {tensor};
  return capture.torch.call_torch(to_local, args);
}

bool writes_distributed(Capture& capture, const c10::OperatorHandle& op, std::span<const c10::IValue> values) {
  if (!op.schema().name().ends_with("_") || !values[0].isTensor()) return false;
  const at::Tensor& tensor = values[0].toTensor();
  if (tensor.is_view() || !fake::has_class_dispatch(tensor)) return false;
  const Ref object = checked(tensor_object(tensor));
  const auto known = capture.tensors.of_classes.find(object.get());
  return is_dtensor(Py_TYPE(object.get())) && known != capture.tensors.of_classes.end() && !known->second.source;
}

bool is_of_distributed(PyObject* function) {
  if (PyMethod_Check(function)) function = PyMethod_GET_FUNCTION(function);
  if (!PyFunction_Check(function)) return false;
  PyObject* const module = reinterpret_cast<PyFunctionObject*>(function)->func_module;
  return module && PyUnicode_Check(module) &&
         std::string_view(PyUnicode_AsUTF8(module)).starts_with("torch.distributed.tensor");
}

namespace {

/// A function of our own, which is not to be interpreted.
Ref ask(Capture& capture, PyObject* function, PyObject* description) {
  NativeScope scope(capture.mode);
  capture.mode.callbacks_allowed = capture.mode.engine_runs = false;
  capture.mode.recording = capture.mode.trusted = true;
  return checked(PyObject_CallOneArg(function, description));
}

}  // namespace

bool keeps_mask(Capture& capture, PyObject* description) {
  static constinit Imported function("magneto._dtensor", "keeps_mask");
  return ask(capture, function.get(), description).get() == Py_True;
}

Ref without_sizes(Capture& capture, PyObject* description) {
  static constinit Imported function("magneto._dtensor", "without_sizes");
  return ask(capture, function.get(), description);
}

std::pair<Ref, Ref> sizes_in(Capture& capture, PyObject* description) {
  const auto numbers = [&](const char* name) {
    const Ref sizes = checked(PySequence_Tuple(checked(PyObject_GetAttrString(description, name)).get()));
    Ref found = capture.symbols.with_size_numbers(sizes.get());
    capture.world.keep(found);
    return found;
  };
  Ref shape = numbers("shape"), stride = numbers("stride");
  return {std::move(shape), std::move(stride)};
}

PyObject* sized_maker() {
  static constinit Imported maker("magneto._dtensor", "make_of_size");
  return maker.get();
}

PyObject* distributed_maker() {
  static constinit Imported maker("magneto._dtensor", "make");
  return maker.get();
}

}  // namespace magneto::capture
