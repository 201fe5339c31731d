// Runs a kernel one element at a time: slow, obvious, and checked. The oracle that machine code is compared with.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "loops/ir.h"

namespace magneto::loops {

/// An index was out of bounds in a `bounds` instruction.
struct BoundsError : std::runtime_error {
  BoundsError(const std::string& text, int32_t message, int64_t index, int64_t size)
      : std::runtime_error(text), message(message), index(index), size(size) {}
  int32_t message;
  int64_t index, size;
};

/// The message with {index} and {size} filled in.
std::string bounds_message(const std::string& pattern, int64_t index, int64_t size);

/// Computes the whole kernel, which must verify. `buffers`: one pointer for each buffer that is not scratch, in order.
/// Throws BoundsError, and std::logic_error when a kernel leaves a buffer (which machine code would do without notice).
void interpret(const Kernel& kernel, std::span<void* const> buffers, std::span<const int64_t> symbols);

}  // namespace magneto::loops
