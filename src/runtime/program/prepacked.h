// Work on weights alone (another layout, a scale), done once and kept while the weights stay as they are.
//
// A write to a weight is noticed by its address. The weight's memory is shared, copy on write, with a lazy clone that
// is held here: whoever asks PyTorch for memory to write to (operators in place, optimizers, `.data`, numpy, DLPack,
// storages) gets a copy at another address, `set_` and `share_memory_` bring another address, and the recorded one is
// not used again while the clone lives. So a weight that is where it was is what it was: one comparison a call.
// Memory that somebody else may write to by an address of his own (another tensor over it, memory that is not
// PyTorch's) is not watched, and what depends on it is computed in each call.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace magneto::runtime {

class Device;

/// What was made of weights, and of which contents.
struct PrepackedMemory {
  ~PrepackedMemory() { count(-counted); }
  /// Of the process, so many bytes more.
  void count(int64_t bytes);

  int64_t counted = 0;
  at::Storage storage;
  /// The clones that keep the recorded addresses from being used again; empty: the weights are not watched.
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> clones;
  std::vector<const void*> addresses;
  /// What operators made: tensors in layouts of their own.
  std::vector<at::Tensor> tensors;
};

/// The kept memory of a program. Thread-safe.
class Prepacked {
 public:
  /// `weight`, as it is now, can be watched: it requires gradients (of other tensors numpy may have a view that nobody
  /// knows of), and nothing else holds its memory.
  static bool can_watch(const at::Tensor& weight);
  /// How many bytes more all programs together may keep.
  static int64_t room();

  /// Which inputs are read, and how many bytes are made of them.
  Prepacked(const Device& device, std::vector<int32_t> weights, int64_t bytes)
      : device_(device), weights_(std::move(weights)), bytes_(bytes) {}

  /// What was kept, if the weights are as they were; null otherwise.
  std::shared_ptr<PrepackedMemory> find(const at::Tensor* const* inputs) const;
  /// Memory to prepare in, of weights that are watched if they can be. `spare`: a caller's own from an earlier call.
  std::shared_ptr<PrepackedMemory> make(const at::Tensor* const* inputs, std::shared_ptr<PrepackedMemory> spare) const;
  /// `memory` is finished.
  void keep(std::shared_ptr<PrepackedMemory> memory) const;

 private:
  bool watch(const at::Tensor* const* inputs, PrepackedMemory& memory) const;

  const Device& device_;
  const std::vector<int32_t> weights_;
  const int64_t bytes_;
  mutable std::mutex mutex_;  // only ever tried: another thread may hold it when the process forks
  mutable std::shared_ptr<PrepackedMemory> kept_;
  /// How often the weights changed after few calls; and the calls since what is kept was made, or since it was given
  /// up.
  mutable int changes_ = 0, calls_ = 0;
};

}  // namespace magneto::runtime
