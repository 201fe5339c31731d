#include "fake/autocast_cache.h"

#include <ATen/CachedTensorUtils.h>

namespace magneto::fake {

void UncachedTensors::add(const at::Tensor& tensor) {
  at::caching::set_cached_tensors_enabled(true);
  at::caching::add_cached_tensor(tensor);
  tensors_.push_back(tensor);
}

UncachedTensors::~UncachedTensors() {
  for (const at::Tensor& tensor : tensors_) at::caching::remove_cached_tensor(tensor);
}

}  // namespace magneto::fake
