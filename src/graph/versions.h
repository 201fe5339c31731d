// Which operators move the version counters of what they write.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace magneto::graph {

/// PyTorch's tracking kernels move the counters of written tensors, not of written lists. Operators on lists move them
/// where they call others for each tensor; a kernel of their own (fused optimizers, unscaling) does not.
inline bool moves_versions(const c10::OperatorHandle& op) {
  for (const c10::Argument& argument : op.schema().arguments()) {
    const bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
    if (is_written && argument.type()->kind() == c10::TypeKind::ListType) {
      return !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
    }
  }
  return true;
}

}  // namespace magneto::graph
