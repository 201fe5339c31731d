// Parameters that the segment makes, and gives other data before anything is computed with them: `layer.double()`,
// `layer.weight.data = value`, parametrizations.
#include <torch/csrc/autograd/variable.h>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "fake/session.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// A leaf that no history, no hook and no gradient knows.
bool is_unused(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return !tensor.grad_fn() && !tensor.is_inference() && !torch::autograd::impl::try_get_grad_accumulator(tensor) &&
         !(meta && (meta->grad_.defined() || !meta->hooks_.empty()));
}

}  // namespace

bool Gradients::take_data(PyObject* parameter, PyObject* value) {
  PyObject* const both[] = {parameter, value};
  if (!is_fake_tensor(parameter) || !is_fake_tensor(value) || Py_TYPE(parameter) != parameter_class()) return false;
  if (!is_exact_tensor_type(Py_TYPE(value)) && Py_TYPE(value) != parameter_class()) return false;
  if (c.tensors.is_input(parameter) || c.torch.is_overridden(both) || is_transforming()) return false;
  const at::Tensor &tensor = unpack_tensor(parameter), &data = unpack_tensor(value);
  if (!is_unused(tensor) || data.is_inference() || data.layout() != tensor.layout()) return false;
  if (tensor.requires_grad() && !data.is_floating_point() && !data.is_complex()) return false;
  if (grads.contains(c.session->value_of(tensor)) || c.session->impl().casts.has(tensor)) return false;
  if (data_.contains(c.session->value_of(tensor)) || data_of(value)) return false;
  const Ref made = c.calls.call(reinterpret_cast<PyObject*>(parameter_class()),
                                {value, tensor.requires_grad() ? Py_True : Py_False});
  if (!is_fake_tensor(made.get())) return false;
  fake::as_fake(tensor)->take(*fake::as_fake(unpack_tensor(made.get())));
  return true;
}

/// `parameter.set_(value)`, which needs no gradient of the value.
Ref set_memory(Capture& capture, const CallArgs& args) {
  const bool fits = args.values.size() == 2 && !args.kwnames && is_fake_tensor(args.values[0]) &&
                    is_fake_tensor(args.values[1]) && !at::GradMode::is_enabled();
  const bool same = fits && args.values[0] == args.values[1] && Py_TYPE(args.values[0]) == parameter_class() &&
                    !capture.tensors.is_input(args.values[0]);
  if (same) return Ref::borrow(args.values[0]);
  if (fits && unpack_tensor(args.values[0]).dtype() == unpack_tensor(args.values[1]).dtype() &&
      capture.gradients.take_data(args.values[0], args.values[1])) {
    return Ref::borrow(args.values[0]);
  }
  capture.side_exit(BreakReason::Mutation, "call of torch._C.TensorBase.set_");
}

}  // namespace magneto::capture
