// One graph for a piece of a backward: its nodes are run on stand-ins for what they have saved.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/backward_region.h"
#include "graph/graph.h"

namespace magneto::autograd {

/// A gradient that a piece gives to a step behind it or to an end.
struct PieceGradient {
  int32_t step;  // from the piece's first
  uint32_t input;
  int32_t output;
};

struct CapturedBackward {
  /// Inputs: what the nodes have saved, then what has arrived.
  graph::Graph graph;
  /// Where the outputs go.
  std::vector<PieceGradient> gradients;
  /// Not empty: why there is none.
  std::string refusal;
};

/// Needs the GIL.
CapturedBackward capture_backward(const BackwardPiece& piece);

}  // namespace magneto::autograd
