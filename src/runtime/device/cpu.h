// The CPU: its memory is PyTorch's allocator's, its kernels run on PyTorch's threads.
#pragma once

#include "runtime/device/device.h"

namespace magneto::runtime {

class Cpu : public Device {
 public:
  std::string_view name() const override;
  c10::DeviceType type() const override;
  c10::DispatchKeySet keys() const override;
  bool compiles() const override;
  at::Storage allocate(int64_t bytes) const override;
  at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype) const override;
  void compile(std::vector<KernelCall>& calls) const override;
  void launch(const KernelCall& call, const KernelRun& run, std::span<void* const> pointers) const override;
  void finish() const override;
  double measure(const std::function<void()>& work) const override;
};

}  // namespace magneto::runtime
