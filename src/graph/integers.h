// Python's ints as inputs of a graph, where they are tensors: which of them a graph may be given.
#pragma once

#include "graph/graph.h"

namespace magneto::graph {

/// What the input `number` may be for `where` to do with a tensor of it what eager does with the number: that makes it
/// one of the result's dtype first, and raises where it does not fit.
shapes::Range integers_that_fit(const Graph& graph, ValueId number);

}  // namespace magneto::graph
