#include "loops/sharing.h"

#include <algorithm>

namespace magneto::loops {
namespace {

/// An element of one iteration: the index names all loops around it and nothing computed.
bool is_own(const Kernel& kernel, const Block& block, Expr index) {
  const auto named = [&](const Loop& loop) {
    return loop.extent == Expr(1) || shapes::depends_on(index, Expr::variable(loop.variable));
  };
  return std::all_of(kernel.parallel.begin(), kernel.parallel.end(), named) &&
         std::all_of(block.loops.begin(), block.loops.end(), named) &&
         !shapes::any_leaf(index, [](Expr leaf) { return leaf.kind() == shapes::ExprKind::Value; });
}

}  // namespace

std::optional<Expr> in_loops(Expr index, const std::vector<Loop>& from, const std::vector<Loop>& to) {
  const bool same = std::equal(from.begin(), from.end(), to.begin(), to.end(),
                               [](const Loop& a, const Loop& b) { return a.extent == b.extent; });
  if (!same) return std::nullopt;
  return shapes::substitute(index, [&](Expr leaf) -> std::optional<Expr> {
    for (size_t i = 0; i < from.size(); ++i) {
      if (leaf == Expr::variable(from[i].variable)) return Expr::variable(to[i].variable);
    }
    return std::nullopt;
  });
}

bool may_write_over(const Kernel& kernel, BufferId operand, BufferId result) {
  const Buffer &read = kernel.buffers[operand], &written = kernel.buffers[result];
  if (read.role != Role::In || written.role != Role::Out) return false;
  if (dtype_bytes(read.dtype) != dtype_bytes(written.dtype)) return false;
  const Block* writer = nullptr;  // the first to store
  Expr stored;
  for (const Block& block : kernel.blocks) {
    for (const Instruction& instruction : block.code) {
      if (writer && instruction.buffer == operand) return false;  // what it needs may be gone
      if (instruction.buffer != result || instruction.op == Op::Load) continue;
      if (instruction.op != Op::Store) return false;
      if (!writer) {
        if (!is_own(kernel, block, instruction.index)) return false;
        writer = &block;
        stored = instruction.index;
      }
      if (in_loops(instruction.index, block.loops, writer->loops) != stored) return false;
    }
  }
  if (!writer) return false;
  for (const Block& block : kernel.blocks) {
    for (const Instruction& instruction : block.code) {
      if (instruction.buffer == operand && in_loops(instruction.index, block.loops, writer->loops) != stored)
        return false;
    }
  }
  return true;
}

}  // namespace magneto::loops
