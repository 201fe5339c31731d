// One graph for a whole region of autograd's graph: its nodes are run on stand-ins for what they have saved.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/backward_region.h"
#include "graph/graph.h"

namespace magneto::autograd {

struct CapturedBackward {
  /// Inputs: what the nodes have saved, then the tangents.
  graph::Graph graph;
  /// By end of the region and input that is given: positions among the outputs; -1: there is no gradient.
  std::vector<std::vector<int32_t>> gradients;
  /// Not empty: why there is none.
  std::string refusal;
};

/// Needs the GIL.
CapturedBackward capture_backward(const BackwardRegion& region, const torch::autograd::variable_list& tangents);

}  // namespace magneto::autograd
