// Memory of a program's outputs: a block whose tensor died is handed out again by the next call.
//
// A fresh large block is given to the process page by page, at the first touch of each, which costs more than most
// kernels do. So each output of a program keeps one free block: the caller's loop that drops a result before it asks
// for the next one, which is every loop, works in the same pages all the time. Blocks outlive the program if tensors
// do.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace magneto::runtime {

/// One output's memory.
class OutputMemory {
 public:
  /// Below this the allocator keeps its memory anyway.
  static constexpr int64_t kLeastBytes = 128 * 1024;

  OutputMemory();
  ~OutputMemory();
  OutputMemory(OutputMemory&&) = default;

  /// A storage of `bytes` that nobody else has. Thread-safe. The free block serves if it is not much larger.
  c10::Storage take(size_t bytes) const;

  struct Slot;

 private:
  std::shared_ptr<Slot> slot_;
};

}  // namespace magneto::runtime
