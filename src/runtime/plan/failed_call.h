// The operator of a library that raised in a run. When CPython runs the segment again, what it raised is raised there,
// be it an interrupt. It is called a second time only if it writes tensors: it may have written some of them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>

#include <optional>
#include <utility>

#include "python/ref.h"

namespace magneto::runtime {

struct FailedCall {
  c10::OperatorHandle op;
  /// Calls of the operator in front of it, in the run.
  int64_t before = 0;
};

/// Of the last run on this thread that raised; none where another operator raised.
std::optional<FailedCall>& failed_call();
/// In a catch block: `op` raised. Operators of PyTorch raise again by themselves.
void note_failed_call(const c10::OperatorHandle& op);
/// `op` ran in front of what has failed.
inline void note_earlier_call(const c10::OperatorHandle& op) {
  if (std::optional<FailedCall>& failed = failed_call(); failed && failed->op == op) ++failed->before;
}

/// A kernel above everything, for operators of libraries that have raised.
void raise_or_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// While it lives, that call, on this thread, raises `error`; null: it runs, and where it stands is noted.
class RaiseAgain {
 public:
  /// Takes the failed call.
  explicit RaiseAgain(PyObject* error);
  ~RaiseAgain();
  RaiseAgain(const RaiseAgain&) = delete;
  /// One waits for its call on this thread.
  static bool waits();
  /// Of the call, if it has come: the frame outside PyTorch that made it, as (code, line).
  std::pair<Ref, int> place() const { return {code_, line_}; }

 private:
  friend void raise_or_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  std::optional<FailedCall> call_;
  void note_place();

  Ref error_, code_;
  int line_ = 0;
  RaiseAgain* outer_ = nullptr;
};

}  // namespace magneto::runtime
