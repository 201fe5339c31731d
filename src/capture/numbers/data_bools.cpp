// Bools that the data say, and that a program goes by in many places: `has_padding = mask.any().item()`.
//
// What one is in this call, the operators that it follows from compute on this call's tensors. The capture goes on with
// that, and each run checks it (magneto::assume): where it is the other one, CPython runs the segment. Where that comes
// often, the next capture ends in front of the `item()`. `bool(mask.any())` is the same.
//
// What follows from much, or from random numbers (`isfinite(hidden).all()` behind dropout), is not computed for that.
// If it asks for what is unusual, the capture goes on with what is usual.
//
// A torch.amp.GradScaler asks whether all gradients are finite: that they are is assumed without computing them. It is
// so but for the few steps in which the scale is found, so each of the others is one graph, and these CPython runs,
// however many there are.
#include <optional>

#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/numbers/computation.h"
#include "capture/numbers/drafts.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/tried_numbers.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "python/imported.h"
#include "python/made_once.h"
#include "runtime/program/promise.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

PyObject* assume_operator() {
  static constinit MadeOnce<PyObject> overload;
  return overload.get([] {
    static constinit Imported ops("torch", "ops");
    const Ref space = checked(PyObject_GetAttrString(ops.get(), "magneto"));
    const Ref packet = checked(PyObject_GetAttrString(space.get(), "assume"));
    return checked(PyObject_GetAttrString(packet.get(), "default")).release();
  });
}

std::optional<bool> read_bool(const at::Tensor& value) {
  if (value.numel() != 1 || value.scalar_type() != at::kBool) return {};
  return value.item<bool>();
}

std::optional<int64_t> read_count(const at::Tensor& value) { return value.count_nonzero().item<int64_t>(); }

}  // namespace

void assume_holds(Capture& c, PyObject* condition, const std::string& what) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("magneto::assume", "")
                                    .typed<void(const at::Tensor&, std::string_view)>();
  const Ref text = checked(PyUnicode_FromStringAndSize(what.data(), static_cast<Py_ssize_t>(what.size())));
  PyObject* args[] = {condition, text.get()};
  c.torch.record(graph::TorchNode::Kind::CallFunction, assume_operator(), args, nullptr, [&] {
    operation.call(unpack_tensor(condition), what);
    return Py_NewRef(Py_None);
  });
}

std::optional<int64_t> count_of_data(Capture& c, graph::ValueId mask) {
  if (transform_depth() > 0) return {};
  return Computation(c).value(mask, read_count);
}

bool decides_step(const Capture& c) {
  static constinit Imported method("torch.amp.grad_scaler", "GradScaler._maybe_opt_step");
  if (!c.options.assumes_bools || !c.frame) return false;
  const auto is_of_method = [&](const InterpFrame* frame) {
    return frame && PyFunction_Check(method.get()) &&
           reinterpret_cast<PyObject*>(frame->info->code) == PyFunction_GET_CODE(method.get());
  };
  const bool is_generator = PyUnicode_CompareWithASCIIString(c.frame->info->code->co_name, "<genexpr>") == 0;
  return is_of_method(is_generator ? c.frame->caller : c.frame);  // the generator is one of the numbers
}

void assume_step(Capture& c, PyObject* number) {
  static constinit Imported eq("torch", "eq");
  static PyObject* const zero = PyLong_FromLong(0);
  const Ref sum = c.numbers.tensor_of_data_float(number);
  assume_holds(c, c.torch.call_torch(eq.get(), {{sum.get(), zero}}).get(), runtime::kSteps);
}

Ref truth_of_state(Capture& c, PyObject* object) {
  if (!is_fake_tensor(object) || transform_depth() > 0 || c.torch.is_overridden({&object, 1})) return {};
  const at::Tensor& tensor = unpack_tensor(object);
  if (tensor.numel() != 1 || fake::known_value(tensor)) return {};
  if (tensor.scalar_type() == at::kBool) return bool_of_data(c, object, /*of_state=*/true);
  const graph::ValueId id = c.session->value_of(tensor);
  if (id == graph::kNoValue || c.tensors.inputs.find(id) == c.tensors.inputs.end()) return {};
  static constinit Imported ne("torch", "ne");
  static PyObject* const zero = PyLong_FromLong(0);
  return bool_of_data(c, c.torch.call_torch(ne.get(), {{object, zero}}).get(), /*of_state=*/true);
}

namespace {

/// What a bool is that asks for the unusual, `isfinite(x).all()`: the same whatever the floats are that it follows
/// from, and however they are ordered (`lower < upper` asks for nothing unusual).
std::optional<bool> usual_bool(Capture& c, graph::ValueId id) {
  using Filling = Computation::Filling;
  std::optional<bool> usual;
  for (const Filling filling : {Filling::Zeros, Filling::Ones, Filling::Normal, Filling::Large, Filling::Negative,
                                Filling::Rising, Filling::Falling}) {
    const std::optional<bool> answer = Computation(c, filling).value(id, read_bool);
    if (!answer || usual.value_or(*answer) != *answer) return {};
    usual = answer;
  }
  return usual;
}

/// A bool of the data, of which something may be assumed. kNoValue: it is none.
graph::ValueId data_bool(Capture& c, PyObject* object) {
  if (!is_fake_tensor(object) || transform_depth() > 0) return graph::kNoValue;
  if (c.mode.backwards_run) return graph::kNoValue;  // where CPython could run nothing instead
  const at::Tensor& tensor = unpack_tensor(object);
  const bool is_bool = tensor.scalar_type() == at::kBool && tensor.numel() == 1 && !fake::known_value(tensor);
  return is_bool && !c.torch.is_overridden({&object, 1}) ? c.session->value_of(tensor) : graph::kNoValue;
}

Ref assumed(Capture& c, PyObject* object, bool now, std::string what) {
  static constinit Imported logical_not("torch", "logical_not");
  const Ref condition = now ? Ref::borrow(object) : c.torch.call_torch(logical_not.get(), {{object}});
  assume_holds(c, condition.get(), std::move(what) + (now ? "True" : "False"));
  c.feedback.checks_data_sizes = true;
  return Ref::borrow(now ? Py_True : Py_False);
}

constexpr char kOfData[] = "a bool that the data say is ";

}  // namespace

Ref bool_of_data(Capture& c, PyObject* object, bool of_state) {
  const bool drafts = c.options.drafts && !of_state;
  if (!c.options.assumes_bools && !drafts) return {};
  const graph::ValueId id = data_bool(c, object);
  if (id == graph::kNoValue) return {};
  using Extent = Computation::Extent;
  const Extent extent = drafts ? Extent::All : of_state ? Extent::OfState : Extent::Small;
  std::optional<bool> now = Computation(c, extent).value(id, read_bool);
  if (!now && extent == Extent::Small) now = usual_bool(c, id);
  if (!now) return {};
  Ref result = assumed(c, object, *now, of_state ? runtime::kNoted : kOfData);
  if (drafts) drafts::note(c, BreakReason::DataDependentBranch, "data-dependent jump", *now ? "True" : "False");
  return result;
}

Ref usual_truth(Capture& c, PyObject* object) {
  if (!c.options.assumes_bools) return {};
  const graph::ValueId id = data_bool(c, object);
  const std::optional<bool> usual = id == graph::kNoValue ? std::nullopt : usual_bool(c, id);
  return usual ? assumed(c, object, *usual, kOfData) : Ref();
}

}  // namespace magneto::capture
