// How inputs of a program get their new contents.
#pragma once

#include "lower/program.h"

namespace magneto::lower {

/// Decides which kernels write inputs directly; the others are left to `program.copies`. Where a step may fail (calls
/// allocate memory, lookups check their indices), inputs are as they were before the run until then, so that the
/// program can run once more: kernels that write are put behind such steps; where their results are needed before,
/// the input is copied to at the end. Not so where a second run writes the same once more.
void write_inputs(LoopProgram& program);

}  // namespace magneto::lower
