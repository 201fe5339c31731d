// Some operators of a graph as a graph of their own.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace magneto::runtime {

/// `operators` (ascending) with the views between them; what they read besides are inputs, what others read of them are
/// outputs.
graph::Graph subgraph(const graph::Graph& whole, const std::vector<int32_t>& operators);

}  // namespace magneto::runtime
