// The ways to run a graph: the ATen level from C++, the torch level under autograd, a backend's callable.
#pragma once

#include <memory>

#include "graph/graph.h"
#include "runtime/plan.h"

namespace magneto::runtime {

/// The ATen operators in order, below autograd: for graphs none of whose results requires grad.
std::unique_ptr<Computation> make_aten_computation(const graph::Graph& graph);
/// The torch calls in order, through their Python callables, under the current grad mode.
std::unique_ptr<Computation> make_torch_computation(const graph::Graph& graph);
/// `callable(*inputs)` gives a tuple or list of the graph's outputs (or one tensor for a single output).
std::unique_ptr<Computation> make_callable_computation(Ref callable, size_t inputs, size_t outputs);

}  // namespace magneto::runtime
