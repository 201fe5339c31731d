// In which order a graph's operators are lowered: as they stand, but for data-dependent numbers.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace magneto::lower {

/// Positions among the graph's operators. What makes a number (an optimizer's step, its bias corrections) comes as soon
/// as its operands are there: no group runs across a call, and in the program's order such calls would part the loops
/// over a weight's elements.
std::vector<int32_t> order_of(const graph::Graph& graph);

}  // namespace magneto::lower
