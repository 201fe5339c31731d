#include "lower/placement.h"

#include <algorithm>

namespace magneto::lower {
namespace {

/// An expression that costs more than this is kept in scratch memory for later stages.
constexpr float kExpensive = 2.5f;
/// Or, where a row is too long for that or its length not known, in the place of a result; of so many bytes at most,
/// which the nearest caches hold.
constexpr int64_t kReuseLimitBytes = 1 << 20;

}  // namespace

Placement::Placement(const Lowering& lowering, const Groups& groups, int32_t number, const Stores& stores,
                     KernelBuffers& buffers)
    : lowering_(lowering),
      dag_(lowering.dag),
      groups_(groups),
      group_(groups.groups[number]),
      number_(number),
      stores_(stores) {
  choose_blocks();
  if (group_.has_inner()) keep_for_later_stages(buffers);
}

int32_t Placement::last_block() const {
  int32_t last = 0;
  for (const int32_t block : block_) last = std::max(last, block);
  return last;
}

std::optional<loops::BufferId> Placement::scratch(NodeId op) const {
  const auto found = scratch_.find(op);
  return found == scratch_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<size_t> Placement::lender(NodeId op) const {
  const auto found = lent_.find(op);
  return found == lent_.end() ? std::nullopt : std::optional(found->second);
}

void Placement::choose_blocks() {
  const bool staged = group_.has_inner();
  block_.assign(group_.ops.size(), 0);
  full_.assign(group_.ops.size(), false);
  for (size_t i = 0; i < group_.ops.size(); ++i) {
    const NodeId op = group_.ops[i];
    full_[i] = staged && (is_reduction(op) || uses_inner(i));
    int32_t block = full_[i] ? 1 : 0;
    for (const Read& read : groups_.reads[op]) {
      const int j = position(read.op);
      if (j < 0) continue;
      // Behind a reduction; in the block of a row or of an expression, or later.
      block = std::max(block, block_[j] + (is_reduction(read.op) && dag_[read.op].kind == NodeKind::Reduce ? 1 : 0));
    }
    if ((block % 2 == 1) != full_[i]) ++block;
    block_[i] = block;
  }
}

/// What a later stage reads of an earlier one and is not stored.
void Placement::keep_for_later_stages(KernelBuffers& buffers) {
  Size inner = 1;
  for (const Axis& axis : group_.axes) inner *= axis.inner ? axis.extent : 1;
  for (size_t i = 0; i < group_.ops.size(); ++i) {
    const NodeId op = group_.ops[i];
    for (const Read& read : groups_.reads[op]) {
      const int j = position(read.op);
      if (j < 0 || !full_[j] || block_[j] == block_[i] || dag_[read.op].kind == NodeKind::Reduce) continue;
      const bool must = dag_[read.op].kind == NodeKind::Scan;
      if (stores_.count(read.op) || scratch_.count(read.op)) continue;
      const bool dear = must || groups_.weight[read.op] > kExpensive;
      const int64_t bytes = inner.hint() * loops::dtype_bytes(dag_[read.op].dtype);
      if (dear && (!inner.is_static() || bytes > loops::kScratchBytes)) {
        if (bytes <= kReuseLimitBytes) lend(read.op);
      } else if (dear) {
        scratch_[read.op] = buffers.scratch(dag_[read.op].dtype, inner.expr());
      }
    }
  }
}

/// No scratch memory holds `op`: it stands until then where a result will that is made of it, if there is one that
/// all who read `op` come before.
void Placement::lend(NodeId op) {
  if (lent_.count(op)) return;
  int32_t last = 0;
  for (size_t i = 0; i < group_.ops.size(); ++i) {
    if (reads(i, op)) last = std::max(last, block_[i]);
  }
  for (size_t i = 0; i < group_.ops.size(); ++i) {
    const auto stored = stores_.find(group_.ops[i]);
    if (block_[i] != last || !full_[i] || !reads(i, op) || stored == stores_.end()) continue;
    if (dag_[group_.ops[i]].kind == NodeKind::Reduce || taken_.count(group_.ops[i])) continue;
    const BufferId buffer = stored->second.front().buffer;
    if (*loop_dtype(lowering_.program.buffers[buffer].dtype) != dag_[op].dtype) continue;
    if (dag_[group_.ops[i]].sizes != dag_[op].sizes) continue;
    lent_[op] = i;
    taken_.insert(group_.ops[i]);
    return;
  }
}

bool Placement::reads(size_t i, NodeId op) const {
  return std::ranges::any_of(groups_.reads[group_.ops[i]], [&](const Read& read) { return read.op == op; });
}

int Placement::position(NodeId op) const {
  if (groups_.group_of[op] != number_ || !groups_.is_op[op]) return -1;
  const auto found = std::find(group_.ops.begin(), group_.ops.end(), op);
  return found == group_.ops.end() ? -1 : static_cast<int>(found - group_.ops.begin());
}

bool Placement::uses_inner(size_t i) const {
  for (const Axis& axis : group_.axes) {
    if (!axis.inner) continue;
    const Expr variable = Expr::variable(axis.variable);
    for (const Expr expr : group_.index[i]) {
      if (shapes::depends_on(expr, variable)) return true;
    }
  }
  // Only if the inner axes have one iteration each: then rows do as well.
  return false;
}

}  // namespace magneto::lower
