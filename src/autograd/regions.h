// Gradients through operators with regions: the backward of `cond` is a `cond` of the branches' backwards.
//
// A branch's backward runs its forward again, as far as it reads that: what a branch that was not taken would have
// saved does not exist. It is a region like the forward, whose operands are the forward's and the gradients of the
// results.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fake/fake.h"
#include "graph/graph.h"

namespace magneto::autograd {

/// Fakes by value: what a region reads of the graph around it.
using Operands = std::map<graph::ValueId, at::Tensor>;

struct RegionGradients {
  /// Inputs of the graph, one for each result whose gradients are needed.
  std::vector<graph::ValueId> tangents;
  /// Of the operands that require gradients, in order; contiguous.
  std::vector<at::Tensor> gradients;
  /// Not empty: why there are none.
  std::string refusal;
};

/// Appends the operators of the backward of what was recorded since the session was at `first` to its graph.
/// `results`: of the region, of which those `needed` have gradients there (what one branch computes of constants may
/// have gradients in the other). The nodes of autograd between them and the operands are used up.
RegionGradients differentiate(fake::Session& session, const std::vector<at::Tensor>& results,
                              const std::vector<bool>& needed, const Operands& operands);

/// An operator with regions, whose operands stand in the last argument.
struct RegionCall {
  graph::AtenNode node;                 // its results are to come
  std::vector<at::Tensor> arguments;    // single tensors in front of the regions (the predicate)
  std::vector<at::Tensor> operands;     // in the order of the last argument
  std::vector<at::Tensor> results;      // what they are like
  std::vector<bool> results_need_grad;  // none: there is no backward
  /// The operator of the backward, but for the gradients behind its operands; and what its results are like.
  graph::AtenNode backward;
  std::vector<at::Tensor> gradients;
  std::string refusal;
};

/// Records it: its results, with their history.
std::vector<at::Tensor> record_call(fake::Session& session, RegionCall call);

/// The node of an operator with regions.
class RegionNode : public torch::autograd::Node {
 public:
  RegionNode(std::string name, std::string refusal, torch::autograd::edge_list&& edges)
      : Node(std::move(edges)), name_(std::move(name)), refusal_(std::move(refusal)) {}

  std::string name() const override { return name_; }
  /// Not empty: why it has no backward.
  const std::string& refusal() const { return refusal_; }

 private:
  std::string name_, refusal_;
};

/// The node is of such a call, and has no backward: why. Else empty.
std::string why_no_backward(const torch::autograd::Node& node);

}  // namespace magneto::autograd
