// Leaves from outside that are frozen for a while: `p.requires_grad_(False)`, until the segment sets it back. Stand-ins
// are frozen as the program says; below autograd nothing has to be done in a run, and the torch level repeats the
// calls. A segment that would leave one frozen ends in front of that.
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/feedback.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/attributes.h"
#include "python/text.h"
#include "support/tensor_object.h"

namespace magneto::capture {

bool Gradients::set_requires_grad(PyObject* tensor, PyObject* value) {
  if (!PyBool_Check(value) || !c.frame || is_transforming() || c.mode.called_back_from || c.mode.backwards_run) {
    return false;
  }
  PyObject* const real = c.tensors.original(tensor).first;
  if (!real || !is_fake_tensor(tensor) || !c.tensors.is_input(tensor) || c.torch.is_overridden({&tensor, 1})) {
    return false;
  }
  const at::Tensor& leaf = unpack_tensor(real);
  if (!leaf.requires_grad() || !leaf.is_leaf() || !unpack_tensor(tensor).is_leaf()) return false;
  Ref here = site();
  if (is_opaque(here)) return false;
  frozen_.emplace_back(Ref::borrow(tensor), std::move(here));
  static PyObject* const method = PyObject_GetAttrString(reinterpret_cast<PyObject*>(tensor_class()), "requires_grad_");
  PyObject* const values[] = {tensor, value};
  c.torch.record(
      graph::TorchNode::Kind::CallMethod, MAGNETO_STR("requires_grad_"), values, nullptr,
      [&] { return PyObject_Vectorcall(method, values, 2, nullptr); }, /*always=*/true);
  return true;
}

void Gradients::check_frozen() {
  for (const auto& [tensor, site] : frozen_) {
    if (unpack_tensor(tensor.get()).requires_grad()) continue;
    c.feedback.opaque_backwards.emplace_back(site, "a tensor from outside stays frozen");
    throw Retry{};
  }
}

}  // namespace magneto::capture
