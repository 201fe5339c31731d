// Which buffers of a kernel may be the same memory.
#pragma once

#include <optional>

#include "loops/ir.h"

namespace magneto::loops {

/// `index`, an expression of the loops `from`, with the variables of the loops `to`; none if their extents differ.
std::optional<Expr> in_loops(Expr index, const std::vector<Loop>& from, const std::vector<Loop>& to);

/// Whether the result may be written over the operand: each parallel iteration reads no element of `operand` but those
/// of its own that it writes in `result` later, so that no iteration misses what another one has overwritten.
bool may_write_over(const Kernel& kernel, BufferId operand, BufferId result);

}  // namespace magneto::loops
