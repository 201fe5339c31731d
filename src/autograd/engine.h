// Autograd's engine, run on the stand-ins of a capture.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <vector>

#include "fake/fake.h"
#include "graph/graph.h"

namespace magneto::autograd {

/// Under the conditions of a usual backward: outside autocast, nothing of it recorded as a torch call. Gradients of
/// `leaves`, undefined where there is none. Needs the GIL; throws what the engine throws.
torch::autograd::variable_list run_engine(fake::Session& session, const torch::autograd::edge_list& roots,
                                          const torch::autograd::variable_list& tangents,
                                          const torch::autograd::edge_list& leaves);

/// Runs the backward of the custom function that made `results`, alone, for what that asks, and takes out of the graph
/// again what it adds, inputs too. False: it has found sizes or numbers in data.
bool rehearse(fake::Session& session, graph::Graph& graph, const torch::autograd::variable_list& results);

}  // namespace magneto::autograd
