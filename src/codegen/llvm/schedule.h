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

/// Accesses that are strided along the lanes' loop, but contiguous along another one (a transpose; tile.h says which):
/// a block of both loops at a time is read or written the way it lies in memory, turned in registers; the kernel's own
/// loads and stores are of scratch memory, in which it lies the other way round.
struct Tile {
  static constexpr int kSide = 64;
  /// With two loops beside the lanes'.
  static constexpr int kShortSide = 16;
  /// Of memory with more pages than the CPU has addresses at hand, more is read of each page.
  static constexpr int kLongSide = 256;
  /// Of a loop, `length` iterations at a time; `origin` is a variable: the first of them.
  struct Side {
    int32_t variable = -1, origin = -1;
    int64_t length = 0;
  };
  struct Turned {
    loops::BufferId buffer, scratch;
    loops::Expr index, place;  // in memory, in scratch
    int32_t lane, along;       // variables: scratch is contiguous along the first, memory along the second
  };
  /// The last parallel loops but the lanes', outermost first; none: no tile.
  std::vector<Side> across;
  /// Without stages: the lanes' loop.
  Side lanes;
  /// With stages: a strip has all of this loop; `across` has the parallel loop alone.
  loops::Loop stage = {-1, 0};
  std::vector<Turned> loads, stores;

  explicit operator bool() const { return !across.empty(); }
  /// The block's length along a loop.
  int64_t block() const {
    int64_t result = 1;
    for (const Side& side : across) result *= side.length;
    return result;
  }
};

struct Schedule {
  Machine machine;
  /// The kernel's own, reordered: the lane loop is innermost where there is one.
  loops::Kernel kernel;
  /// Across rows: lanes in the last parallel loop.
  Lanes rows;
  /// Within rows: for each block.
  std::vector<Lanes> stages;
  Tile tile;
  /// Across rows: a variable, the first lane's row, if scratch memory has a place for each lane; else -1.
  int32_t first_lane = -1;
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
