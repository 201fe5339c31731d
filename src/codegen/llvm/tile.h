// Which accesses are turned: those that are strided along the lanes' loop, but contiguous along another one.
//
// Without stages, the other one is a parallel loop (or there are two, where operands lie in three orders): blocks of
// these loops and the lanes' are worked on at a time. With stages, it is between the loop of a stage and a parallel
// one: strips of that parallel loop, each with all of the stage's loop.
#pragma once

#include "codegen/llvm/schedule.h"

namespace magneto::codegen {

/// What an element of a turned access costs, in scalar instructions. Of a load and a store rather the load: what comes
/// next can be asked for.
constexpr double kTurnedLoad = 0.4, kTurnedStore = 0.45;

/// The parallel loops, two at most, along which accesses should be turned if `lanes` is the lanes' loop.
std::vector<int32_t> turned_loops(const loops::Kernel& kernel, int32_t lanes, const Machine& machine);

/// Whether the access is strided along `lanes` and contiguous along `along`, and may be turned.
bool is_turned(const loops::Kernel& kernel, const loops::Instruction& instruction, int32_t lanes, int32_t along);

/// Of a kernel with stages: the parallel loops of which strips may be turned, with lanes along that loop (`across`) or
/// along the stages'.
std::vector<int32_t> strip_loops(loops::Kernel& kernel, const Machine& machine, bool across);
/// Whether strips may hold what a block accesses.
bool has_strips(const loops::Block& block);

/// Kernels without stages: the lanes run along the last parallel loop.
void make_blocks(Schedule& schedule, const std::vector<int32_t>& loops);
/// Kernels with stages; `along` is one of `strip_loops`.
void make_strips(Schedule& schedule, int32_t along, bool across);

}  // namespace magneto::codegen
