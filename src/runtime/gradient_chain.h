// A backward in parts: nodes of autograd's graph, each of which gives the leaves of one part their gradients and lets
// the next one go on. The engine calls leaves as soon as it can, so their hooks have run (DistributedDataParallel has
// begun to exchange a bucket) before the next part does.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <vector>

#include "autograd/joint.h"
#include "runtime/partitioned_computation.h"

namespace magneto::runtime {

/// What all runs of such a backward share.
class GradientParts {
 public:
  /// `computation` runs the backward's graph. In one part, unless it can be run stage by stage as the backward is cut.
  GradientParts(const autograd::Backward& backward, const TensorComputation& computation);

  size_t count() const { return leaves_.size(); }
  /// Leaves of a part, ascending.
  const std::vector<size_t>& leaves(size_t part) const { return leaves_[part]; }
  /// Null: all is computed at once.
  const PartedComputation* computation() const { return count() > 1 ? computation_ : nullptr; }
  /// Values of the backward's graph: the gradients, by leaf; those that no part behind gives, by part.
  graph::ValueId gradient(size_t leaf) const { return gradients_[leaf]; }
  const std::vector<graph::ValueId>& given_last(size_t part) const { return given_last_[part]; }

 private:
  const PartedComputation* computation_;
  std::vector<std::vector<size_t>> leaves_;
  std::vector<graph::ValueId> gradients_;
  std::vector<std::vector<graph::ValueId>> given_last_;
};

/// One backward on its way from node to node: what is computed so far.
class GradientPassage {
 public:
  /// All gradients are there, by leaf.
  explicit GradientPassage(torch::autograd::variable_list gradients) : gradients_(std::move(gradients)) {}
  /// Parts compute them.
  GradientPassage(const PartedComputation& computation, PartedComputation::Run run)
      : computation_(&computation), run_(std::move(run)) {}

  /// What the node of this part gives; the last one for the next node, if there is one.
  static torch::autograd::variable_list give(std::unique_ptr<GradientPassage> passage, const GradientParts& parts,
                                             size_t part);

 private:
  torch::autograd::variable_list gradients_;
  const PartedComputation* computation_ = nullptr;
  PartedComputation::Run run_;
};

/// The nodes behind the first.
struct GradientChain {
  /// Of the first node: its leaves, and the next node.
  torch::autograd::edge_list first;
  std::vector<torch::autograd::Node*> nodes;

  /// `leaves`: edges, by leaf. `owner` keeps `parts`.
  GradientChain(const std::shared_ptr<const void>& owner, const GradientParts& parts,
                torch::autograd::edge_list leaves);
};

}  // namespace magneto::runtime
