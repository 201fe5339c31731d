// The ways to run a graph: the ATen level from C++, the torch level under autograd, a backend's callable.
#pragma once

#include <memory>

#include "graph/graph.h"
#include "runtime/plan/plan.h"
#include "runtime/program/compiled_program.h"
#include "runtime/reference.h"

namespace magneto::runtime {

/// The ATen operators in order, below autograd: for graphs none of whose results requires grad.
std::unique_ptr<TensorComputation> make_aten_computation(const graph::Graph& graph);

/// A compiled program; `graph` are the captured operators, which run one by one when something unusual is around, and
/// beside the program where its runs are checked.
std::unique_ptr<TensorComputation> make_compiled_computation(CompiledProgram program, graph::Graph graph,
                                                             Origin origin);

/// The torch calls in order, through their Python callables, under the current grad mode.
std::unique_ptr<Computation> make_torch_computation(const graph::Graph& graph);
/// `callable(*inputs)` gives a tuple or list of the graph's outputs (or one tensor for a single output). The numbers of
/// the graph's symbols stand before the inputs. `users`: it comes from a user's backend.
std::unique_ptr<Computation> make_callable_computation(Ref callable, const graph::Graph& graph, bool users);

}  // namespace magneto::runtime
