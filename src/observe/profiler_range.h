// A range in the profiles of torch.profiler.
#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <string>
#include <utility>

namespace magneto::runtime {

/// A range, as long as it lives. Where nobody profiles it costs one question, and `name()` is not called.
class ProfilerRange {
 public:
  template <typename Name>
  explicit ProfilerRange(const Name& name) {
    // at::hasCallbacks() takes a lock.
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!callbacks) return;
    range_.emplace(std::move(*callbacks));
    range_->before(std::string(name()));
  }

 private:
  std::optional<at::RecordFunction> range_;
};

}  // namespace magneto::runtime
