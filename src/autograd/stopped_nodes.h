// Nodes of autograd's graph behind which the engine does not go.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <map>
#include <utility>

namespace magneto::autograd {

/// Their edges are there again at its end.
class StoppedNodes {
 public:
  StoppedNodes() = default;
  ~StoppedNodes() {
    for (auto& [node, edges] : nodes_) node->next_edges() = std::move(edges);
  }
  StoppedNodes(const StoppedNodes&) = delete;
  void add(torch::autograd::Node& node) {
    if (!nodes_.contains(&node)) nodes_[&node] = std::exchange(node.next_edges(), {});
  }

 private:
  std::map<torch::autograd::Node*, torch::autograd::edge_list> nodes_;
};

}  // namespace magneto::autograd
