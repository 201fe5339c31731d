// `with optimize(...)`: functions that a block of the program calls are compiled, without having been wrapped.
#pragma once

#include <Python.h>

namespace magneto::dispatch {

/// From here on, frames of this thread run under the context of `compiled` (a CompiledFunction), except for code whose
/// file begins with one of `skipped` (a tuple of str), generators, and what backends and plans call. Blocks nest.
/// While config.debug_function names functions, only those.
void enter_block(PyObject* compiled, PyObject* skipped);

/// Ends the innermost block of this thread. False with an error set if there is none.
bool leave_block();

/// While alive, blocks let the thread's frames pass: those of backends and of plans are not the program's.
class OutsideBlocks {
 public:
  OutsideBlocks();
  ~OutsideBlocks();
  OutsideBlocks(const OutsideBlocks&) = delete;
};

}  // namespace magneto::dispatch
