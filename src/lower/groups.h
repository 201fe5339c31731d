// Fusion: which nodes one kernel computes.
//
// Some nodes are *ops*: reductions, scans, roots, and expressions that several others share and that cost too much to
// compute again. Every other node is computed where it is read. A group is a kernel to be: ops over one index space,
// whose dimensions ("axes") are rows (parallel) or inner (the loops of stages). An op joins a group when its own
// dimensions are axes of the group, and whatever it reads of the group's ops it reads at the very element that the
// kernel is working on.
//
// Groups run in the order in which they were made. An op may join a group if all that it reads belongs to that group or
// to an earlier one; so no cycle can arise, and each op looks at a few groups only: the cost is linear.
#pragma once

#include <set>
#include <vector>

#include "lower/lowering.h"

namespace magneto::lower {

struct Axis {
  int32_t variable;
  Size extent;
  bool inner = false;
};

struct Group {
  /// >= 0: this extern call instead of ops.
  int32_t call = -1;
  std::vector<NodeId> ops;
  /// For each op the index in each dimension of its domain, over the axes' variables.
  std::vector<std::vector<Expr>> index;
  /// In the order of the dimensions.
  std::vector<Axis> axes;
  /// An axis may not be split: a scan runs along it.
  bool locked = false;
  /// How many instructions its ops take, roughly.
  int32_t code = 0;

  bool has_inner() const;
};

/// What an op reads of another op: which element, over the dimensions of the reader's domain.
struct Read {
  NodeId op;
  std::vector<Expr> index;
};

/// Why an op is not in a group that it could have been in, for people.
struct Refusal {
  NodeId op;
  int32_t group;
  const char* why;
};

struct Groups {
  std::vector<Group> groups;
  std::vector<Refusal> refusals;
  /// By node: an op.
  std::vector<bool> is_op;
  /// By node: the group of an op; -1.
  std::vector<int32_t> group_of;
  /// By node: the expression below it, down to ops and leaves, costs this much to compute per element.
  std::vector<float> weight;
  /// What is an op, or is in no earlier group, only because a kernel's code would become too large.
  std::set<NodeId> cut;
  /// By node: what an op reads of others.
  std::vector<std::vector<Read>> reads;
};

Groups find_groups(const Lowering& lowering);

/// Kernels to be and calls in order, and what was decided.
std::string print(const Lowering& lowering, const Groups& groups);

/// The index space that an op is computed over: of a reduction its operand's.
const Sizes& domain_of(const Dag& dag, NodeId op);

/// The kernels of all groups, as steps of the program.
void emit(Lowering& lowering, const Groups& groups);

}  // namespace magneto::lower
