// Large memory in large pages.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace magneto::runtime {

/// Asks the kernel of the system for huge pages where the memory is large enough to hold some.
inline void prefer_huge_pages(void* data, size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  // Rounded inwards: what lies around is not ours.
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) & ~(kHugePage - 1);
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kHugePage - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a wish; failing is fine
}

}  // namespace magneto::runtime
