// Runs a backward of which one program computes a region: PyTorch's engine goes from a node of ours to the region's
// ends, so that leaves accumulate, and hooks, `inputs=` and callbacks see what they do in eager.
#pragma once

#include <memory>
#include <vector>

#include "autograd/backward_region.h"
#include "runtime/plan/plan.h"

namespace magneto::runtime {

struct BackwardProgram {
  /// Takes what the region's nodes have saved, then the tangents.
  std::unique_ptr<TensorComputation> computation;
  /// CapturedBackward::gradients.
  std::vector<std::vector<int32_t>> gradients;
};

struct BackwardCall {
  torch::autograd::variable_list tangents;
  bool keep_graph = false, accumulate = true;
  torch::autograd::edge_list asked;
};

/// The gradients of what is asked for. Needs no GIL. Throws what the engine and operators throw.
torch::autograd::variable_list run_backward(std::shared_ptr<const BackwardProgram> program,
                                            autograd::BackwardRegion region, BackwardCall call);

}  // namespace magneto::runtime
