// In which block of its kernel each op of a group is computed, and where it stands until other blocks read it.
//
// Blocks of a kernel alternate: even ones are rows, odd ones stages. An op is computed in the first block of its kind
// behind everything that it reads; a stage that needs an expression of an earlier stage loads it from where it was
// stored, or from scratch memory if it is dear, or computes it again.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "lower/kernel_frame.h"

namespace magneto::lower {

class Placement {
 public:
  /// Ops with an entry in `stores` have a place of their own; scratch memory is made for others.
  Placement(const Lowering& lowering, const Groups& groups, int32_t number, const Stores& stores,
            KernelBuffers& buffers);

  /// Of an op, by its position in the group.
  int32_t block(size_t i) const { return block_[i]; }
  int32_t last_block() const;
  /// It is computed for each element of a row.
  bool is_full(size_t i) const { return full_[i]; }
  std::optional<loops::BufferId> scratch(NodeId op) const;
  /// The op, by its position, in whose result's place this one stands for a while.
  std::optional<size_t> lender(NodeId op) const;
  /// -1: no op of the group.
  int position(NodeId op) const;

 private:
  bool is_reduction(NodeId op) const { return dag_[op].kind == NodeKind::Reduce || dag_[op].kind == NodeKind::Scan; }
  bool uses_inner(size_t i) const;
  bool reads(size_t i, NodeId op) const;
  void choose_blocks();
  void keep_for_later_stages(KernelBuffers& buffers);
  void lend(NodeId op);

  const Lowering& lowering_;
  const Dag& dag_;
  const Groups& groups_;
  const Group& group_;
  const int32_t number_;
  const Stores& stores_;
  std::vector<int32_t> block_;
  std::vector<bool> full_;
  std::map<NodeId, loops::BufferId> scratch_;
  std::map<NodeId, size_t> lent_;
  std::set<NodeId> taken_;  // ops that have lent their places
};

}  // namespace magneto::lower
