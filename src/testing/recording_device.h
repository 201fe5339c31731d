// A device of the tests: the CPU, and a list of what was asked of it.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "runtime/device/cpu.h"

namespace magneto::testing {

class RecordingDevice final : public runtime::Cpu {
 public:
  std::string_view name() const override { return "recording"; }
  at::Storage allocate(int64_t bytes) const override;
  at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype) const override;
  void compile(std::vector<runtime::KernelCall>& calls) const override;
  void launch(const runtime::KernelCall& call, const runtime::KernelRun& run,
              std::span<void* const> pointers) const override;
  void finish() const override;

  /// "allocate 64", "launch magneto::add", in order; empty from then on.
  std::vector<std::string> take() const;

 private:
  void note(std::string what) const;

  mutable std::mutex mutex_;
  mutable std::vector<std::string> events_;
};

}  // namespace magneto::testing
