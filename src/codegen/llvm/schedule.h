// Which variable runs along the vector, how wide, in which order the loops run. Knows no LLVM.
//
// Two shapes of code. *Across rows*: the lanes are iterations of one parallel loop; a stage is a scalar loop with
// vector bodies. *Within rows*: each stage has the lanes in one of its own loops; rows are scalar. Pointwise kernels
// and reductions over strided dimensions want the first, reductions over contiguous ones the second.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loops/ir.h"

namespace magneto::codegen {

/// What the schedule and the emitter need to know of the CPU.
struct Machine {
  int vector_bytes = 64;
  bool masks = true;  // masked loads and stores of all element sizes
  /// Results of so many bytes are written around the cache.
  int64_t stream_bytes = INT64_MAX;
};

/// How the lanes of one loop are run: whole vectors of `wide` lanes, then what is left by vectors of `narrow` lanes
/// with a mask (or scalars: narrow == 1).
struct Lanes {
  int32_t variable = -1;  // -1: scalar
  int wide = 1, narrow = 1;
};

/// Loads that are contiguous along another parallel loop than the lanes' (a transpose): a rectangle of both loops at a
/// time is read the way it lies, turned in registers into scratch memory, and the kernel's load reads the scratch.
struct Tile {
  static constexpr int kSide = 64;
  /// Of memory with more pages than the CPU has addresses at hand, more is read of each page.
  static constexpr int kLongSide = 256;
  int across_side = kSide;
  struct Load {
    loops::BufferId buffer, scratch;
    loops::Expr index;  // as it was in the kernel
  };
  int32_t across = -1;                           // the other loop's variable; -1: no tile
  int32_t lane_origin = -1, across_origin = -1;  // variables: where the tile starts
  std::vector<Load> loads;
};

struct Schedule {
  Machine machine;
  /// The kernel's own, reordered: the lane loop is innermost where there is one.
  loops::Kernel kernel;
  /// Across rows: lanes in the last parallel loop.
  Lanes rows;
  /// Within rows: for each block.
  std::vector<Lanes> stages;
  /// Across rows, in kernels without stages: the second last parallel loop and the lanes' in squares.
  Tile tile;
  /// Elements that are needed later, read into the cache while a block works on others.
  struct Ahead {
    size_t block;
    loops::BufferId buffer;
    loops::Expr index;
  };
  std::vector<Ahead> ahead;
  /// By buffer: written around the cache.
  std::vector<bool> streamed;
  /// The range that callers split, and the rows in one unit of it.
  loops::Expr units, rows_per_unit = 1;
};

Schedule make_schedule(loops::Kernel kernel, const Machine& machine);
std::string print(const Schedule& schedule);

/// Bytes that one unit moves, with arithmetic counted in; of symbols.
shapes::Expr unit_cost(const loops::Kernel& kernel);

}  // namespace magneto::codegen
