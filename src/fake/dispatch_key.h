// The one place that knows which dispatch key fakes use and how our kernel gets onto it.
//
// PyTorch reserves `Fake` for fake tensors made outside of it and registers nothing there (2.11 to 2.13); it lies below
// autograd, autocast and functionalisation and above the backends. The key is not on the tensors but in the thread's
// included set while a session is active: factories must be seen as well, and code that reads a tensor's keys
// (`x.new_tensor`, guards) finds those of an ordinary tensor. A fake that escapes from its session therefore reaches a
// backend's kernel, which throws at its storage. A second backend fallback on one key is an error: if
// a PyTorch to come claims the key, `register_kernels` is where to choose another way.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace magneto::fake {

inline constexpr c10::DispatchKey kFakeKey = c10::DispatchKey::Fake;

/// Reserved for tools outside of PyTorch as well, and above everything: here the few composite operators are caught
/// that are recorded whole (rules_whole.cpp); all others fall through.
inline constexpr c10::DispatchKey kFirstKey = c10::DispatchKey::DeferredInit;

/// One of these is among an operator's keys where a level of torch.func has not seen the operator yet.
inline constexpr c10::DispatchKeySet kTransformKeys({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                                     c10::DispatchKey::FuncTorchDynamicLayerBackMode,
                                                     c10::DispatchKey::FuncTorchBatched,
                                                     c10::DispatchKey::FuncTorchGradWrapper});

/// Whether operators of this thread reach our kernels whatever their arguments are.
inline void include_keys(bool included) {
  c10::impl::tls_set_dispatch_key_included(kFakeKey, included);
  c10::impl::tls_set_dispatch_key_included(kFirstKey, included);
}

/// Operators called in this scope pass our kernels by.
class BelowFake {
 public:
  BelowFake() : guard_(c10::DispatchKeySet({kFakeKey, kFirstKey})) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace magneto::fake
