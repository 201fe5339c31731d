#include "runtime/output_memory.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <new>

#include "runtime/held_memory.h"

namespace magneto::runtime {

/// Holds the free block; `kClosed` once the program is gone.
struct OutputMemory::Slot {
  explicit Slot(size_t bytes) : bytes(bytes) {}
  const size_t bytes;
  std::atomic<void*> spare{nullptr};
};

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
/// In front of the data, so that the data's address is the block's whole identity, as the allocator's own are.
constexpr size_t kHeader = 64;
void* const kClosed = reinterpret_cast<void*>(uintptr_t{1});

using SlotPtr = std::shared_ptr<OutputMemory::Slot>;

SlotPtr* slot_of(void* data) { return reinterpret_cast<SlotPtr*>(static_cast<char*>(data) - kHeader); }

void free_block(void* data) {
  SlotPtr* slot = slot_of(data);
  slot->~SlotPtr();
  c10::GetCPUAllocator()->raw_deallocate(slot);
}

void give_back(void* data) {
  void* nothing = nullptr;
  OutputMemory::Slot& slot = **slot_of(data);
  const auto bytes = static_cast<int64_t>(slot.bytes);
  held_memory().outputs += bytes;
  // A free block keeps its slot alive, and the slot the block, until the slot is closed.
  if (slot.spare.compare_exchange_strong(nothing, data, std::memory_order_acq_rel)) return;
  held_memory().outputs -= bytes;
  free_block(data);
}

}  // namespace

void prefer_huge_pages(void* data, size_t bytes) {
  // Rounded inwards: what lies around is not ours.
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) & ~(kHugePage - 1);
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kHugePage - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a wish; failing is fine
}

OutputMemory::OutputMemory(size_t bytes) : slot_(std::make_shared<Slot>(bytes)) {}

OutputMemory::~OutputMemory() {
  if (!slot_) return;
  void* spare = slot_->spare.exchange(kClosed, std::memory_order_acq_rel);
  if (!spare) return;
  held_memory().outputs -= static_cast<int64_t>(slot_->bytes);
  free_block(spare);
}

c10::Storage OutputMemory::take() const {
  void* data = slot_->spare.exchange(nullptr, std::memory_order_acq_rel);
  if (data) {
    held_memory().outputs -= static_cast<int64_t>(slot_->bytes);
  } else {
    void* block = c10::GetCPUAllocator()->raw_allocate(slot_->bytes + kHeader);
    prefer_huge_pages(block, slot_->bytes + kHeader);
    new (block) SlotPtr(slot_);
    data = static_cast<char*>(block) + kHeader;
  }
  return c10::Storage(c10::Storage::use_byte_size_t(), slot_->bytes,
                      c10::DataPtr(data, data, &give_back, c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(),
                      /*resizable=*/true);
}

}  // namespace magneto::runtime
