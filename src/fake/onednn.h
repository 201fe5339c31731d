// What PyTorch leaves to oneDNN on a CPU.
#pragma once

#include <cstdint>

namespace magneto::fake {

/// A convolution of floats whose input has so many elements, the first dimension `batch`. `wide`: the kernel has more
/// than three taps in both directions. Of one image, small, PyTorch does it in a way of its own.
constexpr bool is_for_onednn(int64_t elements, int64_t batch, bool wide) {
  return elements > 20480 || (elements > 0 && (batch > 1 || wide));
}

}  // namespace magneto::fake
