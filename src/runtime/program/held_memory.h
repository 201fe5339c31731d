// Bytes that compiled programs hold between calls, for people and for budgets.
#pragma once

#include <atomic>
#include <cstdint>

namespace magneto::runtime {

struct HeldMemory {
  std::atomic<int64_t> arenas{0};   // intermediates of calls
  std::atomic<int64_t> weights{0};  // work on weights that was done once
  std::atomic<int64_t> outputs{0};  // free blocks for the next call's results
};
inline HeldMemory& held_memory() {
  static HeldMemory held;
  return held;
}

}  // namespace magneto::runtime
