// What a run of a graph must be able to take back, should one of its operators raise.
//
// When an operator raises at run time (a matrix that is not positive definite, an index out of range), the segment is
// undone and CPython runs it instead, so that the program raises at its own line, with all that it did up to there.
// Nothing of Python's was touched by then; tensors that were written in place and the random state are put back.
#pragma once

#include <cstddef>
#include <vector>

#include "graph/graph.h"

namespace magneto::graph {

struct Undo {
  /// Indices into Graph::inputs: written before an operator that may raise.
  std::vector<size_t> written_inputs;
  /// Drawn from before such an operator.
  std::vector<at::Generator> generators;
  /// Some operator may raise because of the values that it gets.
  bool may_raise = false;

  bool empty() const { return written_inputs.empty() && generators.empty(); }
};

Undo undo_of(const Graph& graph);

/// The operator may raise because of the values that it gets: what is not known to be safe may.
bool may_raise(const Graph& graph, const AtenNode& node);

}  // namespace magneto::graph
