#include "runtime/program/output_memory.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "runtime/device/huge_pages.h"
#include "runtime/program/held_memory.h"

namespace magneto::runtime {

/// Holds the free block; `kClosed` once the program is gone.
struct OutputMemory::Slot {
  std::atomic<void*> spare{nullptr};
};

namespace {

/// In front of the data, so that the data's address is the block's whole identity, as the allocator's own are.
constexpr size_t kHeader = 64;
void* const kClosed = reinterpret_cast<void*>(uintptr_t{1});

struct Header {
  std::shared_ptr<OutputMemory::Slot> slot;
  size_t bytes;  // of the data
};
static_assert(sizeof(Header) <= kHeader);

Header* header_of(void* data) { return reinterpret_cast<Header*>(static_cast<char*>(data) - kHeader); }

void free_block(void* data) {
  Header* header = header_of(data);
  header->~Header();
  c10::GetCPUAllocator()->raw_deallocate(header);
}

void give_back(void* data) {
  void* nothing = nullptr;
  const Header& header = *header_of(data);
  const auto bytes = static_cast<int64_t>(header.bytes);
  held_memory().outputs += bytes;
  // A free block keeps its slot alive, and the slot the block, until the slot is closed.
  if (header.slot->spare.compare_exchange_strong(nothing, data, std::memory_order_acq_rel)) return;
  held_memory().outputs -= bytes;
  free_block(data);
}

/// A block that was kept, no longer counted as such.
void* taken_back(void* spare) {
  held_memory().outputs -= static_cast<int64_t>(header_of(spare)->bytes);
  return spare;
}

}  // namespace

OutputMemory::OutputMemory() : slot_(std::make_shared<Slot>()) {}

OutputMemory::~OutputMemory() {
  if (!slot_) return;
  void* spare = slot_->spare.exchange(kClosed, std::memory_order_acq_rel);
  if (spare) free_block(taken_back(spare));
}

c10::Storage OutputMemory::take(size_t bytes) const {
  void* data = slot_->spare.exchange(nullptr, std::memory_order_acq_rel);
  if (data) {
    taken_back(data);
    const size_t there = header_of(data)->bytes;
    if (there < bytes || there / 2 > bytes) free_block(std::exchange(data, nullptr));
  }
  if (!data) {
    void* block = c10::GetCPUAllocator()->raw_allocate(bytes + kHeader);
    prefer_huge_pages(block, bytes + kHeader);
    new (block) Header{slot_, bytes};
    data = static_cast<char*>(block) + kHeader;
  }
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                      c10::DataPtr(data, data, &give_back, c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(),
                      /*resizable=*/true);
}

}  // namespace magneto::runtime
