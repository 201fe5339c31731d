// The part of failed_call.h that needs no Python.
#include <string>

#include "runtime/plan/failed_call.h"

namespace magneto::runtime {

std::optional<FailedCall>& failed_call() {
  thread_local std::optional<FailedCall> call;
  return call;
}

bool is_of_library(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return !name.starts_with("aten::") && !name.starts_with("prims::") && !name.starts_with("magneto::");
}

void note_failed_call(const c10::OperatorHandle& op) {
  if (is_of_library(op)) failed_call() = FailedCall{op};
}

}  // namespace magneto::runtime
