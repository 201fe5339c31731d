// Autocast's cache of casts.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace magneto::fake {

/// Tensors that autocast keeps no casts of, as PyTorch itself tells it of those whose address stands for changing data.
/// It knows them by address: they live until this ends.
class UncachedTensors {
 public:
  UncachedTensors() = default;
  ~UncachedTensors();
  UncachedTensors(const UncachedTensors&) = delete;

  void add(const at::Tensor& tensor);

 private:
  std::vector<at::Tensor> tensors_;
};

}  // namespace magneto::fake
