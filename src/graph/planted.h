// For tests: faults planted in graphs (observe/faults.h).
#pragma once

#include <string>
#include <string_view>

#include "graph/graph.h"

namespace magneto::graph {

/// Where a fault `aten::sin>aten::cos` is planted, the first such operator becomes the other. Both take the same
/// arguments.
void swap_planted(Graph& graph, std::string_view place);

/// Where the faults `lower.raise`, `lower.crash`, `lower.hang` or `lower.memory` are planted with the name of one of
/// the graph's operators: raises, aborts the process, does not end, or takes more and more memory.
void fail_as_planted(const Graph& graph);

}  // namespace magneto::graph
