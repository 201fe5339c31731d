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

/// The graph with each of its operators as a torch call of its own (`torch.ops.aten.add.Tensor`): as
/// graph::graph_module shows it to people and to scripts. Needs the GIL. Throws PythonError, or std::invalid_argument
/// for a constant that has no form in Python.
graph::Graph with_operators_as_calls(graph::Graph graph);

}  // namespace magneto::debug
