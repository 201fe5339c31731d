// What stands in front of a backward of several results: their own nodes. A hook on the gradient of one is called where
// that has one, as in eager, not wherever the backward runs.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "fake/autograd_node.h"

namespace magneto::autograd {

class RootNode;

/// Which roots of one backward have hooks, or had them when their nodes went.
class RootHooks {
 public:
  bool has(size_t root) const;

 private:
  friend RootNode;
  mutable std::mutex mutex_;
  std::vector<const RootNode*> nodes_;
  std::set<size_t> left_;
};

/// Hands on the gradients of results that are one node's in eager.
class RootNode final : public torch::autograd::Node {
 public:
  /// `roots`: by result, the number of the root to whose gradient the edge leads. `hooks`: null where nobody asks.
  RootNode(torch::autograd::edge_list&& edges, std::vector<size_t> roots, std::shared_ptr<RootHooks> hooks);
  ~RootNode() override;

  std::string name() const override { return "CompiledFunctionBackward"; }
  bool has_hook(size_t root) const;

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }

 private:
  const std::vector<size_t> roots_;
  const std::shared_ptr<RootHooks> hooks_;
};

/// Where the gradients of the roots go: to `node`, which has the roots' metadata, through nodes of their own where
/// eager has several (`nodes`, as in Backward).
torch::autograd::edge_list edges_of_roots(const NodePointer& node, const torch::autograd::variable_list& roots,
                                          const std::vector<size_t>& nodes, const std::shared_ptr<RootHooks>& hooks);

}  // namespace magneto::autograd
