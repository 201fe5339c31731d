#include "runtime/gradient_chain.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "autograd/compiled_node.h"
#include "fake/autograd_node.h"

namespace magneto::runtime {

namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// The passage travels as a tensor of no elements, whose memory it is: the engine holds it while it is under way, for
// this backward alone, and frees it if another node raises.

void free_passage(void* passage) { delete static_cast<std::unique_ptr<GradientPassage>*>(passage); }

at::Tensor as_tensor(std::unique_ptr<GradientPassage> passage) {
  auto* held = new std::unique_ptr<GradientPassage>(std::move(passage));
  return at::for_blob(held, {0}).context(held, free_passage).options(at::kFloat).make_tensor();
}

std::unique_ptr<GradientPassage> passage_of(const at::Tensor& tensor) {
  const bool is_ours =
      tensor.defined() && tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == free_passage;
  TORCH_CHECK(is_ours, "Magneto: a hook has replaced what the parts of a compiled backward hand on");
  return std::move(*static_cast<std::unique_ptr<GradientPassage>*>(tensor.storage().data_ptr().get_context()));
}

class PartNode final : public autograd::ContinuingNode {
 public:
  PartNode(std::shared_ptr<const void> owner, const GradientParts& parts, size_t part, edge_list&& edges)
      : ContinuingNode(std::move(edges)), owner_(std::move(owner)), parts_(parts), part_(part) {
    add_input_metadata(at::Tensor(at::detail::empty_cpu({0}, at::kFloat)));
  }

  std::string name() const override { return "CompiledFunctionBackwardPart"; }

 protected:
  variable_list apply(variable_list&& given) override {
    return GradientPassage::give(passage_of(given.at(0)), parts_, part_);
  }

 private:
  std::shared_ptr<const void> owner_;
  const GradientParts& parts_;
  size_t part_;
};

}  // namespace

GradientParts::GradientParts(const autograd::Backward& backward, const TensorComputation& computation)
    : computation_(dynamic_cast<const PartedComputation*>(&computation)) {
  const bool is_cut = computation_ && !backward.ends.empty() && computation_->stages() == backward.ends.size() + 1;
  leaves_.resize(is_cut ? computation_->stages() : 1);
  for (size_t leaf = 0; leaf < backward.leaves.size(); ++leaf) {
    leaves_[is_cut ? backward.leaves[leaf].part : 0].push_back(leaf);
    if (is_cut) gradients_.push_back(backward.graph.outputs[backward.leaves[leaf].gradient]);
  }
  given_last_.resize(leaves_.size());
  std::vector<graph::ValueId> later;
  for (size_t part = leaves_.size(); is_cut && part-- > 0;) {
    for (const size_t leaf : leaves_[part]) {
      if (std::ranges::count(later, gradients_[leaf])) continue;
      later.push_back(gradients_[leaf]);
      given_last_[part].push_back(gradients_[leaf]);
    }
  }
}

variable_list GradientPassage::give(std::unique_ptr<GradientPassage> passage, const GradientParts& parts, size_t part) {
  variable_list given;
  const PartedComputation* computation = passage->computation_;
  if (computation) computation->advance(passage->run_, part);
  for (const size_t leaf : parts.leaves(part)) {
    given.push_back(computation ? passage->run_.values[parts.gradient(leaf)] : std::move(passage->gradients_[leaf]));
  }
  if (computation) {  // AccumulateGrad takes a tensor that nobody else holds
    for (const graph::ValueId id : parts.given_last(part)) passage->run_.values[id].reset();
  }
  if (part + 1 < parts.count()) given.push_back(as_tensor(std::move(passage)));
  return given;
}

GradientChain::GradientChain(const std::shared_ptr<const void>& owner, const GradientParts& parts, edge_list leaves) {
  if (parts.count() == 1) {
    first = std::move(leaves);
    return;
  }
  Edge next;
  for (size_t part = parts.count(); part-- > 0;) {
    edge_list edges;
    for (const size_t leaf : parts.leaves(part)) edges.push_back(std::move(leaves[leaf]));
    if (part + 1 < parts.count()) edges.push_back(std::move(next));
    if (part == 0) {
      first = std::move(edges);
      break;
    }
    auto node = make_autograd_node<PartNode>(owner, parts, part, std::move(edges));
    nodes.insert(nodes.begin(), node.get());
    next = Edge(std::move(node), 0);
  }
}

}  // namespace magneto::runtime
