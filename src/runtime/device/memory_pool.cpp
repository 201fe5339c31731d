#include "runtime/device/memory_pool.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <utility>

#include "runtime/program/held_memory.h"

namespace magneto::runtime {
namespace {

/// In front of the data, so that the data's address is the block's whole identity, as the allocator's own are.
constexpr size_t kHeader = 64;

struct Header {
  size_t bytes;    // of the block, header included
  bool in_region;  // else it is of PyTorch's allocator
};
static_assert(sizeof(Header) <= kHeader);

Header* header_of(void* data) { return reinterpret_cast<Header*>(static_cast<char*>(data) - kHeader); }

/// Addresses as many as the machine has memory; none if the process may not have so many.
char* reserve(size_t* bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  constexpr size_t kLeast = size_t{64} << 20;
  for (size_t wanted = page * static_cast<size_t>(sysconf(_SC_PHYS_PAGES)); wanted >= kLeast; wanted /= 2) {
    void* const region =
        mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) continue;
    madvise(region, wanted, MADV_HUGEPAGE);  // a wish; failing is fine
    *bytes = wanted;
    return static_cast<char*>(region);
  }
  *bytes = 0;
  return nullptr;
}

class MemoryPool {
 public:
  MemoryPool() : base_(reserve(&bytes_)) {}

  /// The block's first byte; null: there are no addresses for it.
  char* take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    most_used_ = std::max(most_used_, used_ + bytes);
    auto range = smallest(bytes, kKept);
    if (range == free_.end()) {
      // What is used and kept together stays below what was used at once.
      if (used_ + bytes + kept_ > most_used_) release_pages(used_ + bytes + kept_ - most_used_);
      range = smallest(bytes, kReleased);
    }
    size_t offset = end_;
    if (range != free_.end()) {
      offset = range->first;
      const Range rest{range->second.bytes - bytes, range->second.pages};
      remove(range);
      if (rest.bytes > 0) add(offset + bytes, rest);
    } else if (bytes_ - end_ >= bytes) {
      end_ += bytes;
    } else {
      return nullptr;
    }
    used_ += bytes;
    return base_ + offset;
  }

  void give_back(char* block, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    used_ -= bytes;
    join(static_cast<size_t>(block - base_), {bytes, kKept});
  }

  size_t release(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    most_used_ = std::max(used_, most_used_ - std::min(bytes, most_used_));
    return release_pages(bytes);
  }

  std::mutex& mutex() { return mutex_; }

 private:
  /// Whether the process has the pages of a free range.
  enum Pages : uint8_t { kKept, kReleased };
  struct Range {
    size_t bytes;
    Pages pages;
  };
  using Ranges = std::map<size_t, Range>;  // by offset

  Ranges::iterator smallest(size_t bytes, Pages pages) {
    const auto found = by_size_[pages].lower_bound({bytes, 0});
    return found == by_size_[pages].end() ? free_.end() : free_.find(found->second);
  }

  /// Largest ranges first.
  size_t release_pages(size_t bytes) {
    static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_t done = 0;
    while (done < bytes && !by_size_[kKept].empty()) {
      const auto [of_range, offset] = *by_size_[kKept].rbegin();
      const size_t begin = (offset + page - 1) / page * page, end = (offset + of_range) / page * page;
      if (begin < end) madvise(base_ + begin, end - begin, MADV_DONTNEED);
      remove(free_.find(offset));
      join(offset, {of_range, kReleased});
      done += of_range;
    }
    return done;
  }

  /// A free range, one with those beside it that are alike.
  void join(size_t offset, Range range) {
    const auto alike = [&](Ranges::iterator other) { return other->second.pages == range.pages; };
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + range.bytes && alike(next)) {
      range.bytes += next->second.bytes;
      remove(next++);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second.bytes == offset && alike(before)) {
        offset = before->first;
        range.bytes += before->second.bytes;
        remove(before);
      }
    }
    add(offset, range);
  }

  void add(size_t offset, Range range) {
    free_.emplace(offset, range);
    by_size_[range.pages].emplace(range.bytes, offset);
    if (range.pages == kKept) count_kept(static_cast<int64_t>(range.bytes));
  }
  void remove(Ranges::iterator range) {
    by_size_[range->second.pages].erase({range->second.bytes, range->first});
    if (range->second.pages == kKept) count_kept(-static_cast<int64_t>(range->second.bytes));
    free_.erase(range);
  }
  void count_kept(int64_t bytes) {
    kept_ = static_cast<size_t>(static_cast<int64_t>(kept_) + bytes);
    held_memory().outputs += bytes;
  }

  size_t bytes_ = 0;
  char* const base_;
  std::mutex mutex_;
  Ranges free_;
  std::set<std::pair<size_t, size_t>> by_size_[2];  // bytes and offset, by pages
  size_t end_ = 0;                                  // of what was ever handed out
  size_t used_ = 0, kept_ = 0, most_used_ = 0;
};

/// Never destroyed: tensors outlive everything. A fork waits until nobody is in it.
MemoryPool& pool() {
  static MemoryPool& made = *[] {
    auto* one = new MemoryPool;
    pthread_atfork([] { pool().mutex().lock(); }, [] { pool().mutex().unlock(); }, [] { pool().mutex().unlock(); });
    return one;
  }();
  return made;
}

void give_back(void* data) {
  Header* const header = header_of(data);
  if (!header->in_region) return c10::GetCPUAllocator()->raw_deallocate(header);
  pool().give_back(reinterpret_cast<char*>(header), header->bytes);
}

}  // namespace

c10::Storage take_pooled(size_t bytes) {
  const size_t needed = (bytes + 2 * kHeader - 1) / kHeader * kHeader;
  void* block = pool().take(needed);
  const bool in_region = block != nullptr;
  if (!block) block = c10::GetCPUAllocator()->raw_allocate(needed);
  new (block) Header{needed, in_region};
  void* const data = static_cast<char*>(block) + kHeader;
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                      c10::DataPtr(data, data, &give_back, c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(),
                      /*resizable=*/true);
}

bool is_pooled(const c10::Storage& storage) { return storage.data_ptr().get_deleter() == &give_back; }

size_t release_pooled(size_t bytes) { return pool().release(bytes); }

}  // namespace magneto::runtime
