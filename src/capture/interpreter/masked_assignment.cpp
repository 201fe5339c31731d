// `target[mask] = source[mask]`: as one operator, whose sizes do not depend on the mask's data.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "capture/interpreter/operations.h"
#include "capture/torch/torch_calls.h"
#include "python/imported.h"
#include "runtime/plan/torch_errors.h"
#include "support/tensor_object.h"

namespace magneto::capture {

bool assign_selected(Capture& capture, PyObject* target, PyObject* mask, PyObject* source) {
  PyObject* const operands[] = {target, mask, source};
  if (capture.torch.is_overridden(operands)) return false;
  for (PyObject* tensor : operands) {
    if (!is_fake_tensor(tensor)) return false;
    if (unpack_tensor(tensor).requires_grad() && at::GradMode::is_enabled()) return false;
  }
  const at::Tensor& to = unpack_tensor(target);
  const at::Tensor& from = unpack_tensor(source);
  const at::Tensor& chosen = unpack_tensor(mask);
  if (to.sizes() != from.sizes() || to.scalar_type() != from.scalar_type() || to.device() != from.device() ||
      to.device() != chosen.device() || !to.is_non_overlapping_and_dense()) {
    return false;
  }
  const auto memory = [](const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  };
  if (memory(to) == memory(chosen)) return false;  // perhaps an error
  if (chosen.scalar_type() != c10::kBool || chosen.dim() == 0 || chosen.dim() > to.dim() ||
      chosen.sizes() != to.sizes().slice(0, chosen.dim()) || fake::known_value(chosen)) {
    return false;
  }
  static constinit Imported assign("magneto._polyfills", "assign_selected");
  PyObject* args[] = {target, mask, source};
  capture.torch.record(graph::TorchNode::Kind::CallFunction, assign.get(), args, nullptr, [&]() -> PyObject* {
    const bool done = runtime::with_torch_errors([&] {
      std::vector<int64_t> sizes = chosen.sizes().vec();
      sizes.resize(to.dim(), 1);
      to.copy_(at::where(chosen.reshape(sizes), from, to));
    });
    return done ? Py_NewRef(Py_None) : nullptr;
  });
  return true;
}

}  // namespace magneto::capture
