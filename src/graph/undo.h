// What a run of a graph changes before one of its operators raises, and what must be kept for that.
//
// Any operator may fail: memory runs out, an operator written in Python is interrupted, values are not what it takes (a
// matrix that is not positive definite, an index out of range). Where a handler, a pending write of Python's or a check
// of the program stands between the operator and the caller, CPython runs the segment once more, from what was before
// it: the program raises at its own line, with all that it did up to there. Nothing of Python's was touched by then;
// tensors and the random state are put back. Elsewhere the error may leave as it is, where tensors are as eager has
// them.
#pragma once

#include <cstddef>
#include <vector>

#include "graph/graph.h"

namespace magneto::graph {

struct Undo {
  struct Written {
    /// An index into Graph::inputs.
    size_t input;
    /// A second run would not give the same on what the first has written. Otherwise only the version goes back.
    bool contents;
  };
  /// Written before an operator that may fail.
  std::vector<Written> written;
  /// Drawn from before such an operator.
  std::vector<at::Generator> generators;
  /// Some operator may raise because of the values that it gets.
  bool may_raise = false;
  /// Behind the first write or draw something stands between an operator that may fail and the caller.
  bool needs_rerun = false;
  /// What may fail stands behind a collective, which a second run must not issue again.
  bool reissues = false;

  bool empty() const { return written.empty() && generators.empty(); }
};

/// `last_guarded`: the last node that a handler or a pending write of Python's stands behind; -1: there is none.
Undo undo_of(const Graph& graph, int32_t last_guarded = -1);

/// The operator may raise because of the values that it gets: what is not known to be safe may.
bool may_raise(const Graph& graph, const AtenNode& node);

}  // namespace magneto::graph
