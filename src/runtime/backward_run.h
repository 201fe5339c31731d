// Runs a backward: PyTorch's engine goes from nodes of ours to leaves, so that these accumulate, and hooks, `inputs=`
// and callbacks see what they do in eager. Between leaves, programs compute pieces, and nodes that must be called are.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "autograd/backward_capture.h"
#include "autograd/backward_region.h"
#include "runtime/plan/plan.h"

namespace magneto::runtime {

struct BackwardProgram {
  /// Takes what the piece's nodes have saved, what has arrived, then, as tensors, `numbers` of the piece.
  std::unique_ptr<TensorComputation> computation;
  std::vector<size_t> numbers;
  std::vector<autograd::PieceGradient> gradients;
};

struct BackwardCall {
  torch::autograd::edge_list roots;
  torch::autograd::variable_list tangents;
  bool keep_graph = false, accumulate = true;
  torch::autograd::edge_list asked;
  /// What computes a piece; null: its nodes are called. Called without the GIL.
  std::function<std::shared_ptr<const BackwardProgram>(const autograd::BackwardPiece&)> program_of;
};

/// The gradients that the backward begins with.
autograd::Arrived arrive(const autograd::BackwardRegion& region, const torch::autograd::variable_list& tangents);

/// The gradients of what is asked for. Needs no GIL. Throws what the engine and operators throw.
torch::autograd::variable_list run_backward(autograd::BackwardRegion region, BackwardCall call);

}  // namespace magneto::runtime
