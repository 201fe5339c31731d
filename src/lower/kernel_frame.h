// The frame of a kernel in the making: its buffers, and the variables of its loops.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lower/groups.h"
#include "shapes/index_knowledge.h"

namespace magneto::lower {

/// Where a kernel's results go.
struct Store {
  BufferId buffer;
  Sizes strides;
  Size offset;
};
/// By op.
using Stores = std::map<NodeId, std::vector<Store>>;

/// The kernel's buffers: the program's that it reads and writes, each once, and scratch memory.
class KernelBuffers {
 public:
  KernelBuffers(const Lowering& lowering, loops::Builder& builder) : lowering_(lowering), builder_(builder) {}

  loops::BufferId of(BufferId buffer, loops::Role role);
  loops::BufferId scratch(Dtype dtype, Expr elements);
  Dtype dtype(loops::BufferId buffer) const { return dtypes_[buffer]; }
  /// By buffer of the kernel: the program's; kNoBuffer: scratch.
  std::vector<BufferId> take() { return std::move(program_buffers_); }

 private:
  loops::BufferId add(Dtype dtype, loops::Role role, Expr elements, const std::string& name = "");

  const Lowering& lowering_;
  loops::Builder& builder_;
  std::map<BufferId, loops::BufferId> known_;
  std::vector<Dtype> dtypes_;
  std::vector<BufferId> program_buffers_;
};

/// The kernel's variables for the axes of its group: those of rows everywhere, those of a stage within it.
class KernelVariables {
 public:
  KernelVariables(const Dag& dag, const Group& group, loops::Builder& builder);
  KernelVariables(const KernelVariables&) = delete;

  void begin_row();
  void begin_stage();
  /// Axes' variables replaced by the kernel's.
  std::vector<Expr> bound(const std::vector<Expr>& index) const;
  /// The stage's element, in the order of its loops; in rows 0.
  Expr place_in_row() const { return place_in_row_; }
  Expr simplify(Expr expr) const;
  shapes::IndexKnowledge knowledge() const { return {extent_, dag_.symbols}; }

 private:
  Expr bind(const Axis& axis, Expr variable);

  const Dag& dag_;
  const Group& group_;
  loops::Builder& builder_;
  std::map<int32_t, Expr> rows_, current_;  // by axis
  Expr place_in_row_;
  Sizes extents_;  // by variable
  const shapes::IndexKnowledge::Extent extent_ = [this](int32_t variable) {
    return static_cast<size_t>(variable) < extents_.size() ? &extents_[variable] : nullptr;
  };
};

}  // namespace magneto::lower
