// `target[mask] = source[mask]`: as one operator, whose sizes do not depend on the mask's data.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "capture/interpreter/operations.h"
#include "capture/interpreter/tensor_keys.h"
#include "capture/torch/torch_calls.h"
#include "python/imported.h"
#include "runtime/plan/torch_errors.h"
#include "support/tensor_object.h"

namespace magneto::capture {

bool is_put_by_mask(PyObject* target, PyObject* mask, PyObject* value) {
  if (!is_fake_tensor(target) || !is_fake_tensor(mask) || !is_fake_tensor(value)) return false;
  const at::Tensor &to = unpack_tensor(target), &chosen = unpack_tensor(mask), &from = unpack_tensor(value);
  return chosen.scalar_type() == c10::kBool && chosen.dim() > 0 && from.dim() > 0 &&
         from.dim() == to.dim() - chosen.dim() + 1 && from.sym_size(0).is_heap_allocated() &&
         from.scalar_type() == to.scalar_type() && from.device() == to.device() && chosen.device() == to.device();
}

PyObject* put_by_mask(PyObject* target, PyObject* mask, PyObject* value) {
  const bool done = runtime::with_torch_errors([&] {
    c10::List<std::optional<at::Tensor>> indices;
    indices.push_back(unpack_tensor(mask));
    unpack_tensor(target).index_put_(indices, unpack_tensor(value));
  });
  return done ? Py_NewRef(Py_None) : nullptr;
}

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
  if (share_memory(to, chosen)) return false;  // perhaps an error
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
