// For tests: memory of tensors that runs out.
#pragma once

#include <cstdint>

namespace magneto::runtime {

/// From now on this thread's allocation number `first` of memory for tensors on the CPU (0: the next one) fails, and
/// with `lasting` all behind it; below 0: none. Gives how many there were since the last call.
int64_t fail_allocations(int64_t first, bool lasting);

}  // namespace magneto::runtime
