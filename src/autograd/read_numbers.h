// Numbers that only a backward reads of the forward's tensors: how long the items of a jagged tensor are.
#pragma once

#include <optional>

#include "graph/graph.h"

namespace magneto::autograd {

/// What operators behind the first `forward` compute in order to read numbers, as a graph of its own whose outputs are
/// the tensors that they are read of. Nothing: a gradient, or what is written or drawn, has part in it.
std::optional<graph::Graph> read_numbers(const graph::Graph& graph, size_t forward);

}  // namespace magneto::autograd
