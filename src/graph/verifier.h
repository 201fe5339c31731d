// The checks of a graph that passes have been over.
#pragma once

#include "graph/graph.h"

namespace magneto::graph {

/// What `verify` checks, but operators of one torch call may stand apart from each other, in any order: the call is
/// where they come from.
std::vector<std::string> verify_operators(const Graph& graph);

}  // namespace magneto::graph
