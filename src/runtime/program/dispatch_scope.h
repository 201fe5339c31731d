// The dispatcher's thread state while a program runs.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace magneto::runtime {

inline constexpr c10::DispatchKeySet kTracking{c10::DispatchKey::ADInplaceOrView};

/// Excludes autograd and autocast (the graph was recorded below both), and for direct calls ADInplaceOrView as well, as
/// PyTorch's own autograd kernels do. Restores the thread's state at the end.
class DispatchScope {
 public:
  DispatchScope() : outer_(c10::impl::tls_local_dispatch_key_set()) {}
  ~DispatchScope() { c10::impl::_force_tls_local_dispatch_key_set(outer_); }
  DispatchScope(const DispatchScope&) = delete;

  /// True when nothing on this thread wants to see operators before their backend does.
  bool is_plain() const {
    constexpr c10::DispatchKeySet usual = c10::default_included_set | c10::autocast_dispatch_keyset;
    return (outer_.included_.raw_repr() & ~usual.raw_repr()) == 0;
  }
  /// ADInplaceOrView if this thread includes it (inference mode does not).
  c10::DispatchKeySet included_tracking() const { return outer_.included_ & kTracking; }
  bool tracking_excluded() const { return outer_.excluded_.has_all(kTracking); }

  void enter(bool with_tracking) {
    c10::impl::LocalDispatchKeySet inner = outer_;
    inner.excluded_ = inner.excluded_ | c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset;
    if (!with_tracking) inner.excluded_ = inner.excluded_ | kTracking;
    c10::impl::_force_tls_local_dispatch_key_set(inner);
  }

 private:
  const c10::impl::LocalDispatchKeySet outer_;
};

}  // namespace magneto::runtime
