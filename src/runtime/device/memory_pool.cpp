#include "runtime/device/memory_pool.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
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
    Window window;
    if (const auto found = by_size_.lower_bound({bytes, 0}); found != by_size_.end()) {
      window = {found->second, bytes};
    } else {
      window = best_window(bytes);
      if (window.offset + bytes > bytes_) return nullptr;
    }
    cut(window.offset, bytes);
    used_ += bytes;
    // What is used and kept together stays below what was used at once.
    if (used_ + kept_ > most_used_) release_pages(used_ + kept_ - most_used_);
    return base_ + window.offset;
  }

  void give_back(char* block, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    used_ -= bytes;
    join(static_cast<size_t>(block - base_), {bytes, kKept});
  }

  void forget() {
    const std::lock_guard<std::mutex> lock(mutex_);
    most_used_ = used_;
    release_pages(SIZE_MAX);
  }

  bool holds(const void* data) const {
    return std::less_equal<>()(static_cast<const void*>(base_), data) &&
           std::less<>()(data, static_cast<const void*>(base_ + bytes_));
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

  /// Where a block may lie, and how much of it has pages.
  struct Window {
    size_t offset = SIZE_MAX, kept = 0;
  };

  /// Of the places for a block that is larger than any kept range, the one that needs the fewest new pages: it begins
  /// where some free range does, and goes on through free ranges of both kinds, or beyond all that was handed out.
  Window best_window(size_t bytes) const {
    Window best{end_, 0};
    for (auto first = free_.begin(); first != free_.end(); ++first) {
      Window here{first->first, 0};
      size_t end = first->first;
      for (auto next = first; next != free_.end() && next->first == end && end < here.offset + bytes; ++next) {
        end += next->second.bytes;
        if (next->second.pages == kKept) here.kept += std::min(next->second.bytes, here.offset + bytes - next->first);
      }
      const bool fits = end >= here.offset + bytes || (end == end_ && here.offset + bytes <= bytes_);
      if (fits && (here.kept > best.kept || (here.kept == best.kept && best.offset == end_))) best = here;
    }
    return best;
  }

  /// Takes these bytes out of what is free.
  void cut(size_t offset, size_t bytes) {
    const size_t end = offset + bytes;
    auto range = free_.find(offset);
    while (range != free_.end() && range->first < end) {
      const size_t begin = range->first;
      const Range old = range->second;
      remove(range++);
      if (begin + old.bytes > end) add(end, {begin + old.bytes - end, old.pages});
    }
    end_ = std::max(end_, end);
  }

  /// Of the largest ranges first, from their ends.
  void release_pages(size_t bytes) {
    static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_t done = 0;
    while (done < bytes && !by_size_.empty()) {
      const auto [of_range, offset] = *by_size_.rbegin();
      const size_t wanted = std::min(of_range, (std::min(bytes - done, of_range) + page - 1) / page * page);
      const size_t start = offset + of_range - wanted;
      const size_t begin = (start + page - 1) / page * page, end = (offset + of_range) / page * page;
      if (begin < end) madvise(base_ + begin, end - begin, MADV_DONTNEED);
      remove(free_.find(offset));
      if (start > offset) add(offset, {start - offset, kKept});
      join(start, {wanted, kReleased});
      done += wanted;
    }
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
    if (range.pages == kReleased) return;
    by_size_.emplace(range.bytes, offset);
    count_kept(static_cast<int64_t>(range.bytes));
  }
  void remove(Ranges::iterator range) {
    if (range->second.pages == kKept) {
      by_size_.erase({range->second.bytes, range->first});
      count_kept(-static_cast<int64_t>(range->second.bytes));
    }
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
  std::set<std::pair<size_t, size_t>> by_size_;  // of those that are kept: bytes and offset
  size_t end_ = 0;                               // of what was ever handed out
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

/// A block of so many bytes of data; null: there are no addresses for it.
void* take_from_region(size_t bytes) {
  const size_t needed = (bytes + 2 * kHeader - 1) / kHeader * kHeader;
  char* const block = pool().take(needed);
  if (!block) return nullptr;
  new (block) Header{needed, /*in_region=*/true};
  return block + kHeader;
}

c10::DataPtr owned(void* data) { return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)}; }

thread_local bool results_are_pooled = false;
/// A backward is to come of a forward that it has run.
thread_local bool thread_trains = false;
std::atomic<int64_t> pending_backwards = 0;

bool is_pooled_here() {
  return results_are_pooled || (thread_trains && pending_backwards.load(std::memory_order_relaxed) > 0);
}

/// PyTorch's own allocator, but for what `PooledResults` and `PendingBackward` are for.
class OperatorsAllocator final : public c10::Allocator {
 public:
  explicit OperatorsAllocator(c10::Allocator& plain) : plain_(plain) {}

  c10::DataPtr allocate(size_t bytes) override {
    const bool pooled = static_cast<int64_t>(bytes) >= kLeastPooledBytes && is_pooled_here();
    void* const data = pooled ? take_from_region(bytes) : nullptr;
    return data ? owned(data) : plain_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
  void copy_data(void* to, const void* from, size_t bytes) const override { plain_.copy_data(to, from, bytes); }

  /// For the rest of the process.
  static void install() {
    set_ = new OperatorsAllocator(*c10::GetCPUAllocator());
    c10::SetCPUAllocator(set_);
  }

 private:
  static void free_any(void* data) {
    if (pool().holds(data)) return give_back(data);
    set_->plain_.raw_deallocate(data);
  }

  static inline OperatorsAllocator* set_ = nullptr;
  c10::Allocator& plain_;
};

}  // namespace

PooledResults::PooledResults(bool pooled) : before_(std::exchange(results_are_pooled, pooled)) {
  if (!pooled) return;  // who never trains keeps PyTorch's allocator
  static const bool once = (OperatorsAllocator::install(), true);
  static_cast<void>(once);
}

PooledResults::~PooledResults() { results_are_pooled = before_; }

PendingBackward::PendingBackward() {
  thread_trains = true;
  ++pending_backwards;
}
PendingBackward::~PendingBackward() { --pending_backwards; }

c10::Storage take_pooled(size_t bytes) {
  void* data = take_from_region(bytes);
  if (!data) {
    const size_t needed = bytes + kHeader;
    void* const block = c10::GetCPUAllocator()->raw_allocate(needed);
    new (block) Header{needed, /*in_region=*/false};
    data = static_cast<char*>(block) + kHeader;
  }
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, owned(data), c10::GetCPUAllocator(),
                      /*resizable=*/true);
}

bool is_pooled(const c10::Storage& storage) { return storage.data_ptr().get_deleter() == &give_back; }

void forget_pooled() { pool().forget(); }

}  // namespace magneto::runtime
