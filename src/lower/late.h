// Kernels stand where they were found: those that need only inputs, at the front. What they make lies in memory until
// it is read.
#pragma once

#include "lower/program.h"

namespace magneto::lower {

/// Puts kernels right before the first step that reads their results, where less memory is held by that: what they make
/// is at least as large as what they would keep alive. Others stay where they are, and so does what may raise, or
/// writes an input.
void run_late(LoopProgram& program);

}  // namespace magneto::lower
