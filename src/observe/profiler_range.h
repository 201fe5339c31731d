// A range in the profiles of torch.profiler.
#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <string>

namespace magneto::runtime {

/// A range, as long as it lives. Where nobody profiles it costs one question, and `name()` is not called.
class ProfilerRange {
 public:
  template <typename Name>
  explicit ProfilerRange(const Name& name) {
    if (!at::hasCallbacks()) return;
    range_.emplace(at::RecordScope::USER_SCOPE);
    if (range_->isActive()) range_->before(std::string(name()));
  }

 private:
  std::optional<at::RecordFunction> range_;
};

}  // namespace magneto::runtime
