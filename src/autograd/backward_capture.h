// One graph for a piece of a backward: its nodes are run on stand-ins for what they have saved.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/backward_symbols.h"
#include "graph/graph.h"

namespace magneto::autograd {

/// A gradient that a piece gives to a step behind it or to an end.
struct PieceGradient {
  int32_t step;  // from the piece's first
  uint32_t input;
  int32_t output;
};

struct CapturedBackward {
  /// Inputs: what the nodes have saved, what has arrived, and numbers of the piece (`numbers`) as tensors.
  graph::Graph graph;
  std::vector<size_t> numbers;
  /// The piece's numbers for which it is right.
  NumberGuards guards;
  /// Operators that have fixed sizes for want of a rule.
  std::vector<std::string> specialised;
  /// Where the outputs go.
  std::vector<PieceGradient> gradients;
  /// Not empty: why there is none.
  std::string refusal;
};

/// Needs the GIL.
CapturedBackward capture_backward(const BackwardPiece& piece, const SymbolChoice& choice);

}  // namespace magneto::autograd
