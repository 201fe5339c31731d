// ATen operators as torch calls: what scripts, and compilers that users wrote, can be given.
#pragma once

#include "graph/graph.h"

namespace magneto::graph {

/// The graph with each of its operators as a torch call of its own (`torch.ops.aten.add.Tensor`): as `graph_module`
/// shows it to people, to scripts and to compilers of users. Needs the GIL. Throws PythonError, or
/// std::invalid_argument for a constant that has no form in Python.
Graph with_operators_as_calls(Graph graph);

}  // namespace magneto::graph
