// The part of failed_call.h that needs no Python.
#include "ops/library.h"
#include "runtime/plan/failed_call.h"

namespace magneto::runtime {

std::optional<FailedCall>& failed_call() {
  thread_local std::optional<FailedCall> call;
  return call;
}

void note_failed_call(const c10::OperatorHandle& op) {
  if (ops::is_of_library(op)) failed_call() = FailedCall{op};
}

}  // namespace magneto::runtime
