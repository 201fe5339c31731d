// Graphs given to the minifier before a backend gets them, while `config.repro_after` asks for it.
#pragma once

#include <string>
#include <vector>

#include "autograd/joint.h"
#include "dispatch/context.h"
#include "graph/graph.h"
#include "graph/symbols.h"

namespace magneto::dispatch {

/// For `repro_after` "dynamo": the captured graph (a torch.fx.GraphModule), its inputs, and the backend.
/// False: the real attempt must not be made; the error is set.
bool try_captured(const Context& context, const Ref& module, const Ref& inputs, bool dynamic);

/// `repro_after` "aot": a graph of ATen operators, forward or backward. `inputs`: none for a backward's. Throws
/// PythonError where the real attempt must not be made.
void try_operators(const graph::Graph& graph, const std::vector<Ref>& inputs, const std::string& place);

/// The same for a graph with gradients.
void try_joint(const graph::Graph& forward, autograd::Joint& joint, const std::vector<Ref>& inputs,
               const std::string& place);

/// The inputs of a backend: the numbers of the graph's symbols, and tensors. New list.
Ref backend_inputs(const graph::Graph& graph, const graph::SymbolValues& values, const std::vector<Ref>& tensors);

}  // namespace magneto::dispatch
