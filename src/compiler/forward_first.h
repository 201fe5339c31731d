// The order of a joint graph's operators.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace magneto::compiler {

/// Puts the operators that `results` need in front of the others, and those that must stay and need no tangent. Gives
/// their count. The order is kept within both.
size_t put_forward_first(graph::Graph& joint, const std::vector<graph::ValueId>& results,
                         const std::vector<graph::ValueId>& tangents);

}  // namespace magneto::compiler
