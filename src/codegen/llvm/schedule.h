// Which variable runs along the vector, how wide, in which order the loops run. Knows no LLVM.
//
// Two shapes of code. *Across rows*: the lanes are iterations of one parallel loop; a stage is a scalar loop with
// vector bodies. *Within rows*: each stage has the lanes in one of its own loops; rows are scalar. Pointwise kernels
// and reductions over strided dimensions want the first, reductions over contiguous ones the second.
#pragma once

#include <cstdint>
#include <vector>

#include "loops/ir.h"

namespace magneto::codegen {

/// What the schedule and the emitter need to know of the CPU.
struct Machine {
  int vector_bytes = 64;
  bool masks = true;  // masked loads and stores of all element sizes
};

/// How the lanes of one loop are run: whole vectors of `wide` lanes, then what is left by vectors of `narrow` lanes
/// with a mask (or scalars: narrow == 1).
struct Lanes {
  int32_t variable = -1;  // -1: scalar
  int wide = 1, narrow = 1;
};

struct Schedule {
  /// The kernel's own, reordered: the lane loop is innermost where there is one.
  loops::Kernel kernel;
  /// Across rows: lanes in the last parallel loop.
  Lanes rows;
  /// Within rows: for each block.
  std::vector<Lanes> stages;
};

Schedule make_schedule(loops::Kernel kernel, const Machine& machine);

/// Bytes that one unit moves, with arithmetic counted in; of symbols.
shapes::Expr unit_cost(const loops::Kernel& kernel);

}  // namespace magneto::codegen
