#include "runtime/program/prepacked.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/COW.h>

#include "runtime/device/device.h"
#include "runtime/program/held_memory.h"
#include "support/settings.h"

namespace magneto::runtime {
namespace {

/// Weights are being trained that change so many times in a row with no more than `kFewCalls` in between. After
/// `kPatience` calls they may have settled.
constexpr int kMostChanges = 3;
constexpr int kFewCalls = 16;
constexpr int kPatience = 64;

/// Nobody else holds the memory, and PyTorch's allocator gave it (or it is shared lazily already).
bool is_own(const c10::StorageImpl& storage) {
  const bool lazy = c10::impl::cow::is_cow_data_ptr(storage.data_ptr());
  return storage.device_type() == c10::DeviceType::CPU && storage.allocator() == c10::GetCPUAllocator() &&
         (lazy || c10::impl::cow::has_simple_data_ptr(storage)) && storage.data();
}

/// A storage that only this tensor holds: no view and no alias made before is left to write by.
bool is_alone(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().use_count() == 1 && is_own(*tensor.storage().unsafeGetStorageImpl());
}

}  // namespace

std::shared_ptr<PrepackedMemory> Prepacked::find(const at::Tensor* const* inputs) const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !kept_) return nullptr;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (inputs[weights_[i]]->const_data_ptr() == kept_->addresses[i]) continue;
    kept_ = nullptr;
    changes_ = calls_ > kFewCalls ? 0 : changes_ + 1;
    calls_ = 0;
    return nullptr;
  }
  ++calls_;
  return kept_;
}

std::shared_ptr<PrepackedMemory> Prepacked::make(const at::Tensor* const* inputs,
                                                 std::shared_ptr<PrepackedMemory> spare) const {
  // What is watched may be shared with other calls.
  std::shared_ptr<PrepackedMemory> memory = spare && spare->clones.empty() ? std::move(spare) : nullptr;
  if (!memory) {
    memory = std::make_shared<PrepackedMemory>();
    memory->storage = device_.allocate(bytes_);
    memory->count(bytes_);
  }
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return memory;
  if (changes_ >= kMostChanges && ++calls_ >= kPatience) changes_ = kMostChanges - 1;
  if (changes_ >= kMostChanges) return memory;
  calls_ = 0;
  if (!watch(inputs, *memory)) {
    memory->clones.clear();
    memory->addresses.clear();
    changes_ = kMostChanges;
  }
  return memory;
}

void PrepackedMemory::count(int64_t bytes) {
  counted += bytes;
  held_memory().weights += bytes;
}

int64_t Prepacked::room() { return (settings().prepared_weights_mb << 20) - held_memory().weights; }

bool Prepacked::can_watch(const at::Tensor& weight) { return weight.requires_grad() && is_alone(weight); }

bool Prepacked::watch(const at::Tensor* const* inputs, PrepackedMemory& memory) const {
  for (const int32_t weight : weights_) {
    if (!is_alone(*inputs[weight])) return false;
  }
  for (const int32_t weight : weights_) {
    c10::StorageImpl& storage = *inputs[weight]->storage().unsafeGetStorageImpl();
    auto clone = c10::impl::cow::lazy_clone_storage(storage);
    if (!clone) return false;
    memory.clones.push_back(std::move(clone));
    memory.addresses.push_back(inputs[weight]->const_data_ptr());
  }
  return true;
}

void Prepacked::keep(std::shared_ptr<PrepackedMemory> memory) const {
  if (memory->clones.empty()) return;
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) kept_ = std::move(memory);
}

}  // namespace magneto::runtime
