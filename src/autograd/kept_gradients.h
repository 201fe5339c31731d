// The gradients that a backward hands out become `.grad` of the leaves, tensors that programs write.
#pragma once

#include <cstddef>

#include "graph/graph.h"

namespace magneto::autograd {

/// A gradient that another one is a view of becomes a copy of itself. AccumulateGrad keeps the tensor that it is given
/// unless somebody else holds it. In eager the node of that view does, and so the leaf gets a copy; a compiled backward
/// hands out all gradients together, and leaves would share their memory. Views of one tensor that is no gradient share
/// it in eager as well. `begin`: where the gradients begin among the outputs.
void separate_gradients(graph::Graph& graph, size_t begin = 0);

}  // namespace magneto::autograd
