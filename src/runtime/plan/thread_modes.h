// The modes of a thread, and switches of the process, that a program's calls set and set back: after an error in
// between they are what they were.
#pragma once

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <exception>

namespace magneto::runtime {

/// A run that raises in this scope leaves the thread's modes as it found them.
class ModesKeptOnError {
 public:
  ModesKeptOnError() = default;
  ModesKeptOnError(const ModesKeptOnError&) = delete;
  ~ModesKeptOnError() {
    if (std::uncaught_exceptions() == exceptions_) return;
    c10::AutogradState::set_tls_state(autograd_);
    c10::impl::_force_tls_local_dispatch_key_set(keys_);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_);
    at::autocast::set_autocast_cache_enabled(cache_);
    at::Context& context = at::globalContext();
    context.setSDPUseFlash(flash_);
    context.setSDPUseMemEfficient(efficient_);
    context.setSDPUseMath(math_);
    context.setSDPUseCuDNN(cudnn_attention_);
    context.setUserEnabledCuDNN(cudnn_);
  }

 private:
  const int exceptions_ = std::uncaught_exceptions();
  const c10::AutogradState autograd_ = c10::AutogradState::get_tls_state();
  const c10::impl::LocalDispatchKeySet keys_ = c10::impl::tls_local_dispatch_key_set();
  const at::ScalarType dtype_ = at::autocast::get_autocast_dtype(at::kCPU);
  const bool cache_ = at::autocast::is_autocast_cache_enabled();
  const bool flash_ = at::globalContext().userEnabledFlashSDP();
  const bool efficient_ = at::globalContext().userEnabledMemEfficientSDP();
  const bool math_ = at::globalContext().userEnabledMathSDP();
  const bool cudnn_attention_ = at::globalContext().userEnabledCuDNNSDP();
  const bool cudnn_ = at::globalContext().userEnabledCuDNN();
};

}  // namespace magneto::runtime
