// `with optimize(...)`: functions that a block of the program calls are compiled, without having been wrapped.
#pragma once

#include <Python.h>

namespace magneto::dispatch {

struct Context;

/// Not kept away by config.debug_function, which has a function's name, or its qualified one (Model.forward).
bool is_named(const PyCodeObject* code);

/// From here on, frames of this thread run under the context of `compiled` (a CompiledFunction), except for code whose
/// file begins with one of `skipped` (a tuple of str), for `left_alone` (a code object, or None), generators, and what
/// backends and plans call. Blocks nest. While config.debug_function names functions, only those.
void enter_block(PyObject* compiled, PyObject* skipped, PyObject* left_alone);

/// Ends the innermost block of this thread. False with an error set if there is none.
bool leave_block();

/// While alive, this thread runs an instruction of a frame of `context` for real, and what it calls.
class Stepping {
 public:
  explicit Stepping(const Context& context);
  ~Stepping();
  Stepping(const Stepping&) = delete;

  /// The innermost one's CompiledFunction, borrowed; null outside.
  static PyObject* compiled();

 private:
  const Context* outer_;
};

/// While alive, blocks let the thread's frames pass: those of backends and of plans are not the program's.
class OutsideBlocks {
 public:
  OutsideBlocks();
  ~OutsideBlocks();
  OutsideBlocks(const OutsideBlocks&) = delete;
};

}  // namespace magneto::dispatch
