// Autocast's cache of casts, which PyTorch itself leaves tensors out of whose address stands for changing data.
#include <ATen/CachedTensorUtils.h>

#include "fake/session.h"

namespace magneto::fake {

void Session::Impl::leave_out_of_autocast_cache(const at::Tensor& fake) {
  at::caching::set_cached_tensors_enabled(true);
  at::caching::add_cached_tensor(fake);
  uncached_.push_back(fake);
}

void Session::Impl::end_leaving_out(const at::Tensor& fake) { at::caching::remove_cached_tensor(fake); }

void Session::leave_out_of_autocast_cache(const at::Tensor& fake) { impl_->leave_out_of_autocast_cache(fake); }

}  // namespace magneto::fake
