#include "capture/torch/class_tensors.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_nested_get_values.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/calls/native_mode.h"
#include "capture/interpreter/errors.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/numbers/unknown_number.h"
#include "capture/torch/distributed_tensors.h"
#include "capture/torch/gradients.h"
#include "capture/torch/nested_ints.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/modules.h"
#include "capture/world/world.h"
#include "fake/size_node.h"
#include "graph/orphans.h"
#include "python/abi/dicts.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/dtensor.h"
#include "python/imported.h"
#include "runtime/plan/torch_errors.h"
#include "support/symbol_object.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// Another value for as long as it lives.
template <typename T>
class Exchanged {
 public:
  Exchanged(T& place, T now) : place_(place), before_(std::exchange(place, now)) {}
  ~Exchanged() { place_ = before_; }
  Exchanged(const Exchanged&) = delete;

 private:
  T& place_;
  const T before_;
};

constexpr int kDeepest = 4;

template <typename Visit>
void for_each_tensor(PyObject* object, const Visit& visit, int depth = 0) {
  if (is_tensor(object)) return visit(unpack_tensor(object));
  if (depth == kDeepest) return;
  if (PyTuple_Check(object) || PyList_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      for_each_tensor(PySequence_Fast_GET_ITEM(object, i), visit, depth + 1);
    }
  }
}

using SizeObject = std::function<Ref(const c10::SymInt&)>;
Ref python_value(const c10::IValue& value, const c10::Type& declared, const SizeObject& size_object) {
  if (value.isSymInt()) return size_object(value.toSymInt());
  if (value.isSymIntList()) {
    Ref list = checked(PyList_New(0));
    for (const c10::SymInt& size : value.toSymIntVector()) {
      if (PyList_Append(list.get(), size_object(size).get()) < 0) throw PythonError{};
    }
    return list;
  }
  if (value.isTensor() && value.toTensor().defined()) return checked(tensor_object(value.toTensor()));
  if (value.isTensorList() || value.isOptionalTensorList()) {
    Ref list = checked(PyList_New(0));
    for (const c10::IValue& item : value.toListRef()) {
      if (PyList_Append(list.get(), python_value(item, declared, size_object).get()) < 0) throw PythonError{};
    }
    return list;
  }
  if (value.isGenerator()) throw std::invalid_argument("a generator");
  return graph::constant_object(value, declared);
}

struct PythonCall {
  Ref args, kwargs;
};

/// As PyTorch hands an operator's arguments to Python: what is as it is by default, at the end or by name, is left out.
/// `for_pytorch`: its own code gets them, which knows torch.SymInt alone.
PythonCall python_call(Capture& capture, const c10::OperatorHandle& op, std::span<const c10::IValue> values,
                       bool for_pytorch) {
  const auto size_object = [&](const c10::SymInt& size) {
    Ref object = checked(symint_of(size));
    const bool stays = for_pytorch || nested_int_of(object.get());
    return stays ? object : capture.symbols.size_number(fake::expr_of(size));
  };
  const auto& arguments = op.schema().arguments();
  size_t positional = 0;
  while (positional < arguments.size() && !arguments[positional].kwarg_only()) ++positional;
  const auto is_default = [&](size_t i) {
    const auto& standard = arguments[i].default_value();
    return standard && !standard->isTensor() && !values[i].isTensor() && *standard == values[i];
  };
  const size_t by_name = positional;
  while (positional > 0 && is_default(positional - 1)) --positional;
  PythonCall call{checked(PyTuple_New(static_cast<Py_ssize_t>(positional))), checked(PyDict_New())};
  for (size_t i = 0; i < positional; ++i) {
    PyTuple_SET_ITEM(call.args.get(), i, python_value(values[i], *arguments[i].real_type(), size_object).release());
  }
  for (size_t i = by_name; i < arguments.size(); ++i) {
    if (is_default(i)) continue;
    const Ref value = python_value(values[i], *arguments[i].real_type(), size_object);
    if (PyDict_SetItemString(call.kwargs.get(), arguments[i].name().c_str(), value.get()) < 0) throw PythonError{};
  }
  return call;
}

/// The tensor itself, or what it is a copy of that PyTorch has made past its class: a result that autograd has saved.
at::Tensor with_its_class(Capture& capture, const at::Tensor& tensor) {
  if (!tensor.defined() || fake::has_class_dispatch(tensor)) return tensor;
  if (capture.session->value_of(tensor) != graph::kNoValue || !tensor.has_storage()) return tensor;
  for (const auto& [stand_in, known] : capture.tensors.of_classes) {
    if (unpack_tensor(stand_in).storage().is_alias_of(tensor.storage())) return unpack_tensor(stand_in);
  }
  return tensor;
}

/// The classes to ask: in the order of the arguments, but those that derive from others before these.
std::vector<PyTypeObject*> classes_of(std::span<const c10::IValue> values) {
  std::vector<PyTypeObject*> types;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !fake::has_class_dispatch(tensor)) return;
    PyTypeObject* type = Py_TYPE(checked(tensor_object(tensor)).get());
    if (std::ranges::find(types, type) != types.end()) return;
    types.insert(std::ranges::find_if(types, [&](PyTypeObject* other) { return PyType_IsSubtype(type, other); }), type);
  };
  for (const c10::IValue& value : values) {
    if (value.isTensor()) add(value.toTensor());
    if (value.isTensorList()) std::ranges::for_each(value.toTensorVector(), add);
    if (!value.isOptionalTensorList()) continue;
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor()) add(item.toTensor());
    }
  }
  return types;
}

template <typename Visit>
void for_each_tensor_of(std::span<const c10::IValue> values, const Visit& visit) {
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
    if (value.isTensorList()) std::ranges::for_each(value.toTensorVector(), visit);
  }
}

bool needs_grad(std::span<const c10::IValue> values) {
  bool found = false;
  for_each_tensor_of(values, [&](const at::Tensor& tensor) { found |= tensor.requires_grad(); });
  return found;
}

/// A plain tensor among the results has the memory of one among the arguments.
bool shares_memory(const c10::IValue& result, std::span<const c10::IValue> values) {
  bool found = false;
  for_each_tensor_of({&result, 1}, [&](const at::Tensor& made) {
    for_each_tensor_of(values, [&](const at::Tensor& given) {
      const bool plain = !fake::has_class_dispatch(made) && !fake::has_class_dispatch(given);
      found |= plain && made.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
                            given.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    });
  });
  return found;
}

/// Nothing: it is no such value.
std::optional<c10::IValue> operator_value(PyObject* object, const c10::Type& type) {
  if (object == Py_None) return type.kind() == c10::TypeKind::TensorType ? c10::IValue(at::Tensor()) : c10::IValue();
  if (is_tensor(object)) return c10::IValue(unpack_tensor(object));
  if (type.kind() == c10::TypeKind::ListType && (PyList_Check(object) || PyTuple_Check(object))) {
    std::vector<at::Tensor> tensors;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(object, i);
      if (!is_tensor(item)) return std::nullopt;
      tensors.push_back(unpack_tensor(item));
    }
    return c10::IValue(std::move(tensors));
  }
  if (PyBool_Check(object)) return c10::IValue(object == Py_True);
  if (PyLong_CheckExact(object)) return c10::IValue(int64_t{PyLong_AsLongLong(object)});
  if (PyFloat_CheckExact(object)) return c10::IValue(PyFloat_AS_DOUBLE(object));
  return std::nullopt;
}

}  // namespace

bool holds_class_tensor(PyObject* object) {
  bool found = false;
  for_each_tensor(object, [&](const at::Tensor& tensor) { found |= fake::has_class_dispatch(tensor); });
  return found;
}

AboveClasses::AboveClasses(Capture& capture)
    : dispatch_([&capture](const c10::OperatorHandle& op,
                           torch::jit::Stack* stack) { capture.torch.call_dispatch(op, stack); },
                capture.torch.is_dispatching(), capture.torch.dispatch_modes.is_on()) {}

ClassCall::ClassCall(Capture& capture, std::span<PyObject* const> args) {
  const bool in_mode = capture.torch.dispatch_modes.is_on();
  if (!in_mode && std::ranges::none_of(args, holds_class_tensor)) return;
  bool needs_grad = false;
  for (PyObject* arg : args) {
    for_each_tensor(arg, [&](const at::Tensor& tensor) { needs_grad |= tensor.requires_grad(); });
  }
  if (in_mode && needs_grad && at::GradMode::is_enabled()) {
    capture.side_exit(BreakReason::OpaqueCall, "gradients are needed under a mode with a __torch_dispatch__");
  }
  if (needs_grad && at::GradMode::is_enabled() && !capture.torch.is_dispatching()) {
    for (PyObject* arg : args) {
      for_each_tensor(arg, [&](const at::Tensor& tensor) {
        if (fake::has_class_dispatch(tensor)) capture.gradients.pass_class(checked(tensor_object(tensor)).get());
      });
    }
  } else {
    below_.emplace();
  }
  above_.emplace(capture);
}

/// The backward may read what the tensor wraps, when it is too late for inputs of the graph.
void Gradients::pass_class(PyObject* tensor) {
  const auto refuse = [&](const std::string& why) {
    c.side_exit(BreakReason::UnsupportedTensor,
                "gradients are needed beside a tensor whose class has a __torch_dispatch__ (subclasses): " + why);
  };
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  if (!c.options.wants_backward) refuse("the backend runs torch calls");
  if (c.session->operands) refuse("inside a function that is captured as a graph of its own");
  if (c.options.partition.whole) refuse("a compiler of the program's own gets the graph");
  if (const std::string why = why_opaque(type); !why.empty()) refuse(why);
  PyObject* real = c.tensors.original(tensor).first;
  if (!classes_.insert(tensor).second) return;
  c.world.wrap(type, c.sources.constant(type));
  c.attributes.load_attr(type, MAGNETO_STR("__torch_dispatch__"));
  if (!real) return;
  const bool is_known = fake::is_jagged(unpack_tensor(real)) || is_dtensor(Py_TYPE(real));
  if (unpack_tensor(real).grad_fn() && !is_known) refuse("its history is from before the capture");
  PyObject* attributes = instance_dict(real);
  PyObject *name, *value;
  std::vector<Ref> names;
  for (Py_ssize_t position = 0; attributes && PyDict_Next(attributes, &position, &name, &value);) {
    if (is_tensor(value) && PyUnicode_Check(name) && !unpack_tensor(value).is_meta())
      names.push_back(Ref::borrow(name));
  }
  for (const Ref& each : names) {
    const Ref inside = c.attributes.load_attr(tensor, each.get());
    if (holds_class_tensor(inside.get())) pass_class(inside.get());
  }
}

bool Gradients::has_passed(PyObject* type) const {
  return std::ranges::any_of(
      classes_, [&](PyObject* tensor) { return Py_TYPE(tensor) == reinterpret_cast<PyTypeObject*>(type); });
}

void Gradients::retry_without_classes(const std::string& why) {
  for (PyObject* tensor : classes_) {
    c.feedback.opaque_backwards.emplace_back(Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(tensor))), why);
  }
  throw Retry{};
}

std::pair<PyObject*, const guards::Source*> TensorMap::original(PyObject* tensor) const {
  if (const auto found = of_classes.find(tensor); found != of_classes.end()) {
    return {found->second.real.get(), found->second.source};
  }
  if (!is_fake_tensor(tensor)) return {};
  const auto input = inputs.find(c.session->value_of(unpack_tensor(tensor)));
  if (input == inputs.end()) return {};
  return {input->second.real.get(), input->second.source};
}

namespace {

/// Who answers for a tensor's sizes and strides.
struct Answering : c10::TensorImpl {
  static SizesStridesPolicy policy(const c10::TensorImpl& impl) {
    constexpr auto is_python = &Answering::matches_python_custom;
    if ((impl.*is_python)(SizesStridesPolicy::CustomSizes)) return SizesStridesPolicy::CustomSizes;
    const bool strides = (impl.*is_python)(SizesStridesPolicy::CustomStrides);
    return strides ? SizesStridesPolicy::CustomStrides : SizesStridesPolicy::Default;
  }
};

/// Its sizes are numbers and nested ints.
bool has_nested_sizes(const c10::TensorImpl& impl) {
  return std::ranges::all_of(impl.sym_sizes_default(), [](const c10::SymInt& size) {
    return !size.is_heap_allocated() || nested_int_of(checked(symint_of(size)).get());
  });
}

/// A wrapper that looks like it, without attributes.
Ref wrapper_like(PyObject* raw) {
  const at::Tensor& tensor = unpack_tensor(raw);
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::impl::ExcludeDispatchKeyGuard past_class(c10::DispatchKey::Python);
  at::Tensor made(impl.shallow_copy_and_detach(c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
  c10::TensorImpl& copy = *made.unsafeGetTensorImpl();
  copy.set_python_dispatch(true);
  if (impl.has_symbolic_sizes_strides()) {
    copy.set_python_custom_sizes_strides(Answering::policy(impl));
    copy.set_python_custom_layout(tensor.layout() != at::kStrided);
  }
  if (tensor.requires_grad()) made.set_requires_grad(true);
  return checked(tensor_object(made, Py_TYPE(raw)));
}

/// PyTorch imports modules when it asks a class for sizes for the first time, which must not be inside a capture.
void have_asked_once(Capture& capture) {
  static bool has_asked = false;
  if (std::exchange(has_asked, true)) return;
  capture.run_suspended([] {
    static constinit Imported type("torch.nested._internal.nested_tensor", "NestedTensor");
    const Ref values = checked(tensor_object(at::empty({2, 2}, at::kMeta)));
    const Ref offsets = checked(tensor_object(at::empty({3}, at::TensorOptions(at::kLong).device(at::kMeta))));
    const Ref made = checked(PyObject_CallFunctionObjArgs(type.get(), values.get(), offsets.get(), nullptr));
    unpack_tensor(made.get()).sym_sizes();
  });
}

}  // namespace

/// PyTorch asks the class for the sizes, which is C code that reads the attributes: the stand-in has them.
void TensorMap::fill_nested_sizes(PyObject* raw) {
  const Ref stand_in = fake_of.at(raw);
  std::vector<Ref> names;
  PyObject *name, *value;
  for (Py_ssize_t position = 0; PyDict_Next(instance_dict(raw), &position, &name, &value);) {
    // PyTorch calls for a jagged tensor by one without data, which nobody reads: it need be no input of the graph.
    if (!is_tensor(value) || !unpack_tensor(value).is_meta()) names.push_back(Ref::borrow(name));
  }
  for (const Ref& each : names) {
    Ref attribute = c.containers.resolve(c.attributes.load_attr(stand_in.get(), each.get()).get());
    if (PyTuple_CheckExact(attribute.get())) {
      Ref known = checked(PyTuple_New(PyTuple_GET_SIZE(attribute.get())));
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(attribute.get()); ++i) {
        PyTuple_SET_ITEM(known.get(), i, c.numbers.known(PyTuple_GET_ITEM(attribute.get(), i)).release());
      }
      attribute = std::move(known);
    }
    attribute = c.numbers.known(attribute.get());
    if (PyObject_GenericSetAttr(stand_in.get(), each.get(), attribute.get()) < 0) throw PythonError{};
  }
}

Ref TensorMap::wrap_class_tensor(PyObject* raw, const guards::Source* source) {
  const at::Tensor& tensor = unpack_tensor(raw);
  if (!fake::has_class_dispatch(tensor) || !tensor.has_storage()) return {};
  // What it has in slots (AsyncCollectiveTensor), a stand-in has not.
  const auto* plain = reinterpret_cast<PyTypeObject*>(tensor_class());
  if (Py_TYPE(raw)->tp_basicsize > plain->tp_basicsize && !is_dtensor(Py_TYPE(raw))) return {};
  const bool nested = tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  if (nested ? !has_nested_sizes(*tensor.unsafeGetTensorImpl()) : tensor.layout() != at::kStrided) return {};
  const bool empty = !nested && tensor.numel() == 0;
  if (!empty && tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()) return {};
  if (nested && tensor.requires_grad() && at::GradMode::is_enabled() && !c.options.wants_backward) {
    c.side_exit(BreakReason::UnsupportedTensor, source->name() + ", whose sizes are nested, requires gradients");
  }
  c.guards.tensor(source, raw);
  if (nested) have_asked_once(c);
  const Ref stand_in = wrapper_like(raw);
  of_classes[stand_in.get()] = {stand_in, Ref::borrow(raw), source, {}, {}};
  fake_of[raw] = stand_in;
  if (tensor.requires_grad() && c.options.wants_backward) {  // gradients may end there
    graph::TensorMeta meta;
    meta.dtype = tensor.scalar_type();
    if (!nested) meta = graph::meta_of(tensor);
    inputs[c.graph.add_input(source->name(), meta)] = {Ref::borrow(raw), source};
  }
  c.world.keep(Ref::borrow(raw));
  if (is_dtensor(Py_TYPE(raw))) fill_distributed(c, raw, stand_in.get(), source);
  if (nested) fill_nested_sizes(raw);
  if (tensor.grad_fn() && (nested || is_dtensor(Py_TYPE(raw))))
    fake::give_earlier_history(unpack_tensor(stand_in.get()));
  return stand_in;
}

PyObject* wrapper_maker() {
  static PyMethodDef definition = {"make_wrapper",
                                   [](PyObject*, PyObject* given) -> PyObject* {
                                     static constinit Imported function("torch", "Tensor._make_wrapper_subclass");
                                     return PyObject_Call(function.get(), PyTuple_GET_ITEM(given, 0),
                                                          PyTuple_GET_ITEM(given, 1));
                                   },
                                   METH_VARARGS, nullptr};
  static PyObject* const function = PyCFunction_New(&definition, nullptr);
  return function;
}

Ref TensorMap::values_with_history(PyObject* jagged) {
  const Ref inside = checked(PyObject_GetAttr(jagged, MAGNETO_STR("_values")));
  const at::Tensor& values = unpack_tensor(inside.get());
  const torch::autograd::Edge& edge = unpack_tensor(jagged).grad_fn()->next_edges().at(0);
  if (values.requires_grad() && edge == torch::autograd::impl::gradient_edge(values))
    return inside;  // it is their view
  const AboveClasses above(c);
  const CalledBack called_back(c.mode);
  const c10::AutoGradMode with_grad(true);
  try {
    return checked(tensor_object(at::_nested_get_values(unpack_tensor(jagged))));
  } catch (const std::exception& error) {
    PyErr_Clear();
    c.errors.check_sticky();
    c.gradients.retry_without_classes(error.what());
  }
}

Ref TensorMap::make_class_tensor(const CallArgs& args) {
  const auto count = static_cast<Py_ssize_t>(args.positional());
  Ref positional = checked(PyTuple_New(count)), now = checked(PyTuple_New(count));
  Ref keywords = checked(PyDict_New()), keywords_now = checked(PyDict_New());
  for (size_t i = 0; i < args.values.size(); ++i) {
    const bool of_storage = meaning_of<OfStorage>(args.values[i]);
    Ref value = c.containers.resolve(args.values[i]);
    if (!of_storage) value = c.symbols.with_known_sizes(c.numbers.known(value.get()).get());
    if (is_tensor(value.get())) c.side_exit(BreakReason::UnsupportedTensor, "a wrapper of a tensor is made by C code");
    Ref value_now = Ref::borrow(number_now(value.get()));
    if (i < args.positional()) {
      PyTuple_SET_ITEM(positional.get(), i, value.release());
      PyTuple_SET_ITEM(now.get(), i, value_now.release());
    } else if (PyDict_SetItem(keywords.get(), args.keyword(i), value.get()) < 0 ||
               PyDict_SetItem(keywords_now.get(), args.keyword(i), value_now.get()) < 0) {
      throw PythonError{};
    }
  }
  const Ref given = checked(PyTuple_Pack(2, now.get(), keywords_now.get()));
  Ref made = checked(PyObject_Call(wrapper_maker(), given.get(), nullptr));
  of_classes[made.get()] = {made, {}, nullptr, positional, keywords};
  if (fake::is_jagged(unpack_tensor(made.get()))) have_asked_once(c);
  return made;
}

namespace {

/// What a class has given last; the capture keeps it.
thread_local PyObject* last_dispatched = nullptr;

/// Torch calls mean what they mean for torch.Tensor.
class WithoutTorchFunction {
 public:
  WithoutTorchFunction() {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::SUBCLASSES_DISABLED);
  }
  ~WithoutTorchFunction() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before_); }
  WithoutTorchFunction(const WithoutTorchFunction&) = delete;

 private:
  const at::impl::TorchFunctionDisabledState before_ = at::impl::PythonTorchFunctionTLS::get_disabled_state();
};

const c10::StorageImpl* storage_of(PyObject* tensor) {
  return unpack_tensor(tensor).unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

}  // namespace

Ref with_class(Capture& capture, Ref result) {
  if (!is_tensor(result.get()) || is_fake_tensor(result.get()) || holds_class_tensor(result.get())) return result;
  PyObject* const given = last_dispatched;
  if (!is_tensor(given) || storage_of(given) != storage_of(result.get()) ||
      unpack_tensor(result.get()).requires_grad()) {
    capture.side_exit(BreakReason::UnsupportedTensor, "a tensor of a class is copied past its class");
  }
  const WithoutTorchFunction scope;
  static PyObject* const detach = PyObject_GetAttrString(tensor_class(), "detach");
  return capture.calls.call(detach, {given});
}

/// The class's __torch_dispatch__, interpreted. Where the segment has ended, autograd's engine calls for it, and there
/// is no frame to call from.
Ref TorchCalls::ask_class(PyObject* type, std::array<PyObject*, 4> args) {
  if (!c.frame) {
    if (!c.gradients.has_passed(type)) c.gradients.retry_without_classes("the backward makes a tensor of a class");
    const CalledBack called_back(c.mode);
    const Ref method = checked(PyObject_GetAttr(type, MAGNETO_STR("__torch_dispatch__")));
    return checked(PyObject_Vectorcall(method.get(), args.data(), args.size(), nullptr));
  }
  const NonResumable whole(c);
  NativeScope scope(c.mode);
  c.mode.callbacks_allowed = c.mode.recording = c.mode.trusted = false;
  if (!c.mode.called_back_from) c.mode.called_back_from = c.frame;
  const Ref method = c.attributes.load_attr(type, MAGNETO_STR("__torch_dispatch__"));
  return c.calls.call(method.get(), {args[0], args[1], args[2], args[3]});
}

void TorchCalls::call_dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  std::vector<c10::IValue> values = torch::jit::pop(*stack, count);
  for (c10::IValue& value : values) {
    if (value.isTensor()) value = with_its_class(c, value.toTensor());
  }
  const bool with_history = at::GradMode::is_enabled() && !dispatching_ && needs_grad(values);
  const auto refuse = [&](const std::string& why) {
    if (!c.frame) c.gradients.retry_without_classes(why);
    c.side_exit(BreakReason::UnsupportedTensor, why);
  };
  const auto call = [&] {
    if (with_history && op.schema().is_mutable() && !writes_distributed(c, op, values)) {
      c.gradients.retry_without_classes(op.schema().name() + " writes where autograd records");
    }
    const std::vector<PyTypeObject*> types = classes_of(values);
    const PythonCall python = python_call(c, op, values, std::ranges::any_of(types, is_dtensor));
    Ref all = checked(PyTuple_New(static_cast<Py_ssize_t>(types.size())));
    for (size_t i = 0; i < types.size(); ++i) {
      PyTuple_SET_ITEM(all.get(), i, Py_NewRef(reinterpret_cast<PyObject*>(types[i])));
      c.world.wrap(reinterpret_cast<PyObject*>(types[i]), c.sources.constant(reinterpret_cast<PyObject*>(types[i])));
    }
    const Ref function = graph::overload_object(op);
    c.world.wrap(function.get(), c.sources.constant(function.get()));
    if (c.torch.dispatch_modes.is_on()) {
      Ref result = c.torch.dispatch_modes.ask({function.get(), all.get(), python.args.get(), python.kwargs.get()});
      if (result.get() == Py_NotImplemented) refuse("a mode does not take " + callable_name(function.get()));
      return result;
    }
    for (PyTypeObject* type : types) {
      if (is_dtensor(type)) {
        std::string why;
        Ref result = dispatch_distributed(c, function.get(), python.args.get(), python.kwargs.get(), why);
        if (!result) refuse("an operator on DTensors: " + why);
        return result;
      }
      PyObject* found = lookup_in_type(type, MAGNETO_STR("__torch_dispatch__"));
      if (!found || Py_TYPE(found) != &PyClassMethod_Type) break;
      Ref result = ask_class(reinterpret_cast<PyObject*>(type),
                             {function.get(), all.get(), python.args.get(), python.kwargs.get()});
      if (result.get() != Py_NotImplemented) return result;
    }
    refuse("no __torch_dispatch__ takes " + callable_name(function.get()));
    return Ref();
  };
  const auto give = [&](PyObject* result) {
    const auto& returns = op.schema().returns();
    const bool several = returns.size() > 1;
    for (size_t i = 0; i < returns.size(); ++i) {
      if (several && (!(PyTuple_Check(result) || PyList_Check(result)) ||
                      PySequence_Fast_GET_SIZE(result) != static_cast<Py_ssize_t>(returns.size()))) {
        refuse("a __torch_dispatch__ gives too few results");
      }
      PyObject* item = several ? PySequence_Fast_GET_ITEM(result, i) : result;
      std::optional<c10::IValue> value = operator_value(item, *returns[i].type());
      if (!value) refuse("a __torch_dispatch__ gives what is no tensor");
      if (with_history && shares_memory(*value, values)) {
        c.gradients.retry_without_classes("a result shares the memory of an argument");
      }
      stack->push_back(std::move(*value));
    }
  };
  runtime::with_python([&] {
    try {
      // Back as it was before the handlers below run.
      const Exchanged node(c.session->torch_node, -1);
      const Exchanged inside(dispatching_, true);
      const Ref result = call();
      c.world.keep(result);
      last_dispatched = result.get();
      give(result.get());
    } catch (const PythonError&) {
      throw;
    } catch (...) {
      c.errors.interrupt_c_code(std::current_exception());
      throw PythonError{};
    }
    dispatched_ = true;
  });
}

namespace {

Ref handle_make_wrapper(Capture& capture, const CallArgs& args) { return capture.tensors.make_class_tensor(args); }

}  // namespace

std::span<const HandlerRow> class_tensor_handlers() {
  static constexpr HandlerRow rows[] = {
      {"torch._C.TensorBase._make_wrapper_subclass", handle_make_wrapper},
  };
  return rows;
}

}  // namespace magneto::capture
