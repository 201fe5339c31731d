// The autocast of a forward, for what runs it again.
#pragma once

#include <ATen/autocast_mode.h>

namespace magneto::runtime {

/// Autocast on the CPU, which the engine's thread does not have as the forward had it.
struct Autocast {
  bool enabled = at::autocast::is_autocast_enabled(at::kCPU), cached = at::autocast::is_autocast_cache_enabled();
  at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);

  void apply() const {
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::set_autocast_cache_enabled(cached);
  }
};

class AutocastScope {
 public:
  explicit AutocastScope(const Autocast& of_forward) {
    of_forward.apply();
    at::autocast::set_autocast_cache_enabled(false);  // which is emptied where `with torch.autocast` ends
  }
  ~AutocastScope() { before_.apply(); }
  AutocastScope(const AutocastScope&) = delete;

 private:
  const Autocast before_;
};

}  // namespace magneto::runtime
