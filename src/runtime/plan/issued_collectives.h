// What a run that raised has exchanged with other processes. They went on: when CPython runs the segment again, its
// collectives give what they gave, and are not issued a second time.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>

#include "python/ref.h"

namespace magneto::runtime {

/// While one lives, what this thread's collectives give is noted, if there may be a second run (graph::Undo::reissues).
/// When the scope ends with an exception, that is what IssuedAgain finds.
class NotedCollectives {
 public:
  explicit NotedCollectives(bool wanted);
  ~NotedCollectives();
  NotedCollectives(const NotedCollectives&) = delete;

 private:
  const bool wanted_;
  const int exceptions_;
};

/// While one lives, collectives on this thread give what was noted, until nothing is left of it.
class IssuedAgain {
 public:
  IssuedAgain();
  ~IssuedAgain();
  IssuedAgain(const IssuedAgain&) = delete;

 private:
  /// Those that write their tensors go by functional ones, as they did in the run.
  Ref mode_;
};

/// Of `_c10d_functional`, and caught for good.
bool is_caught(const c10::OperatorHandle& op);

}  // namespace magneto::runtime
