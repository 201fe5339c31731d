// Parts of a graph's ATen level, for the reducer.
#pragma once

#include <vector>

#include "debug/reduce.h"
#include "graph/graph.h"

namespace magneto::debug {

/// Its operators and values. Constants are there without being inputs.
Skeleton skeleton_of(const graph::Graph& graph);

/// A part as a graph of its own, without the torch level. Its inputs are `part.inputs`, and in front of them, where
/// sizes are dynamic, the inputs that say the sizes. May be unsound: graph::verify tells.
graph::Graph graph_of(const graph::Graph& whole, const Skeleton& skeleton, const Part& part);

/// Of the whole, what the inputs of that graph are.
std::vector<graph::ValueId> inputs_of(const graph::Graph& whole, const Skeleton& skeleton, const Part& part);

}  // namespace magneto::debug
