// Large blocks of the CPU's memory, handed out again and again.
//
// A fresh large block is given to the process page by page, at the first touch of each, which costs more than most
// kernels do. So what programs make for each call (results, what a forward saves, large intermediates of training) lies
// in one region of addresses, of which free ranges are handed out, the smallest that is large enough, and joined when
// they come back. Addresses cost nothing, pages do: pages of free ranges stay with the process as long as all that is
// in use and free together is no more than was in use at once at some time. So a step that goes on in other memory
// than the one before takes no more than one of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace magneto::runtime {

/// Below this the system's allocator keeps its memory anyway.
constexpr int64_t kLeastPooledBytes = 128 * 1024;

/// A storage of `bytes` that nobody else has, with undefined contents. Thread-safe. Blocks live as long as their
/// storages, whatever becomes of the program that made them. Throws what PyTorch's allocator throws.
c10::Storage take_pooled(size_t bytes);

/// Whether it is of such a block. If so, nobody knows of its memory but who holds a storage or tensor of it.
bool is_pooled(const c10::Storage& storage);

/// Gives pages of free ranges back to the system, until so many bytes are given back or there are no more. How many
/// were.
size_t release_pooled(size_t bytes);

}  // namespace magneto::runtime
