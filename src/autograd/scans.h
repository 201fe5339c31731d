// Gradients through scans and loops: the backward of a scan is a scan the other way round.
//
// A step's backward runs the step again, as far as it reads that, of what was carried into it, which the operator gives
// for each step, stacked, where that is read. It carries the gradients of what the step carries, and the sums so far of
// the gradients of the operands, and gives the gradients of the step's slices.
//
// How often a while_loop runs only the data say, and so how much it would keep. Its backward runs the loop again, keeps
// what its steps read of what is carried, and then goes through the steps from the last one on, as that of a scan.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fake/fake.h"
#include "graph/graph.h"

namespace magneto::autograd {

struct ScanCall {
  std::shared_ptr<const graph::Region> step;
  /// `xs`: the slices of these are given to the steps.
  std::vector<at::Tensor> carried, xs, operands;
  bool reverse = false, random = false;
  /// What the results are like: what is carried behind the last step, what the steps gave, and, for each of `read` that
  /// is carried, what that was.
  std::vector<at::Tensor> likes;
  /// By carried tensor, those that have gradients in the steps; by result but the last ones.
  std::vector<bool> carried_need_grad, results_need_grad;

  /// Null: there is none.
  std::shared_ptr<const graph::Region> backward;
  /// What it reads, of what a step is given: carried tensors and slices.
  std::vector<size_t> read;
  std::vector<at::Tensor> gradient_likes;
  /// Not empty: why there is no backward, though results require gradients.
  std::string refusal;
};

struct LoopCall {
  std::vector<at::Tensor> carried, operands;
  /// By carried tensor.
  std::vector<bool> need_grad;
  /// The first arguments of the operator of the backward: condition and body, the backward of the body, and what that
  /// reads of the carried tensors. Empty: there is none.
  std::vector<graph::AtenArg> backward;
  std::vector<at::Tensor> gradient_likes;
  std::string refusal;
};

/// Records the node, whose results are like what is carried: these, with their history.
std::vector<at::Tensor> record_loop(fake::Session& session, graph::AtenNode node, LoopCall call);

/// Records it: its results but those for the backward, with their history.
std::vector<at::Tensor> record_scan(fake::Session& session, ScanCall call);

}  // namespace magneto::autograd
