#include "runtime/plan/inference_mode.h"

#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace magneto::runtime {

namespace {

/// The thread before the region: what c10::InferenceMode has in a guard.
struct Before {
  c10::AutogradState autograd = c10::AutogradState::get_tls_state();
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
};

thread_local std::optional<Before> before;

}  // namespace

void set_inference_mode(bool enabled) {
  if (!enabled) {
    if (!before) return;
    c10::AutogradState::set_tls_state(before->autograd);
    c10::impl::_force_tls_local_dispatch_key_set(before->keys);
    before.reset();
    return;
  }
  before.emplace();
  c10::AutogradState::set_tls_state(c10::AutogradState(/*grad_mode=*/false, /*inference_mode=*/true,
                                                       /*fw_grad_mode=*/false, /*multithreading_enabled=*/false));
  c10::impl::LocalDispatchKeySet keys = before->keys;
  keys.included_ = keys.included_.remove(c10::DispatchKey::ADInplaceOrView);
  keys.excluded_ = keys.excluded_ | c10::autograd_dispatch_keyset;
  c10::impl::_force_tls_local_dispatch_key_set(keys);
}

at::Tensor as_inference(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_inference()) return tensor;
  const c10::InferenceMode mode;
  TORCH_CHECK(tensor.layout() == at::kStrided, "a tensor of layout ", tensor.layout(), " was made in inference mode");
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

}  // namespace magneto::runtime
