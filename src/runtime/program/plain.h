// Tensors that need no care: nothing but their backend, autograd and tracking wants to see the operators on them.
#pragma once

#include <ATen/core/Tensor.h>

namespace magneto::runtime {

/// Dimension names; PyTorch dropped them after 2.11.
template <typename Impl>
bool has_dimension_names(const Impl& impl) {
  if constexpr (requires { impl.has_named_tensor_meta(); }) {
    return impl.has_named_tensor_meta();
  } else {
    return false;
  }
}

/// True for a tensor that only backends, autograd and tracking know.
inline bool is_plain(const at::Tensor& tensor) {
  using c10::DispatchKey;
  static const uint64_t usual =
      c10::DispatchKeySet({DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA,
                           DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA, DispatchKey::ADInplaceOrView})
          .raw_repr();
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return (impl->key_set().raw_repr() & ~usual) == 0 && !has_dimension_names(*impl);
}

}  // namespace magneto::runtime
