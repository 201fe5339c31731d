// Large blocks of the CPU's memory, handed out again and again.
//
// A fresh large block is given to the process page by page, at the first touch of each, which costs more than most
// kernels do. So what programs make for each call (results, what a forward saves, large intermediates of training) lies
// in one region of addresses, and so does what operators allocate there for their results, such as gradients: one after
// the other they come to lie in the same pages. Free ranges are handed out, the smallest that is large enough, and
// joined when they come back; where none is, the place is taken that needs the fewest new pages. Addresses cost
// nothing, pages do: pages of free ranges stay with the process as long as all that is in use and free together is no
// more than was in use at once at some time. So a step that goes on in other memory than the one before takes no more
// than one of them.
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

/// While it lives, what operators allocate in this thread (results of their own, workspace) comes from here as well, so
/// that a step's gradients come to lie where what it saved has died.
class PooledResults {
 public:
  explicit PooledResults(bool pooled);
  ~PooledResults();
  PooledResults(const PooledResults&) = delete;

 private:
  const bool before_;
};

/// While one lives, a backward of ours is to come, and what threads allocate that have run such forwards comes from
/// here: the loss, which is eager's, finds the pages of what the forward needs no more.
class PendingBackward {
 public:
  PendingBackward();
  ~PendingBackward();
  PendingBackward(const PendingBackward&) = delete;
};

/// Gives the pages of all free ranges back to the system: what needed them is gone.
void forget_pooled();

}  // namespace magneto::runtime
