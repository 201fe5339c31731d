// A graph whose results require gradients: its forward as one computation, and a node of autograd's graph whose
// backward is another.
#pragma once

#include <memory>

#include "autograd/joint.h"
#include "runtime/computation.h"
#include "runtime/sized_computation.h"

namespace magneto::runtime {

/// `forward` runs `forward_of(graph, joint)`, each of `computations` one of the backwards' graphs; `torch_level`
/// runs the graph under autograd, for when something unusual is around, and for gradients of gradients: none, where
/// its gradients are others (Results::of_classes). `prune` compiles a backward whose outputs are fewer; without it all
/// gradients are computed, whichever are asked for.
std::unique_ptr<Computation> make_joint_computation(const graph::Graph& graph, autograd::Joint joint,
                                                    std::unique_ptr<TensorComputation> forward,
                                                    std::vector<std::unique_ptr<TensorComputation>> computations,
                                                    std::unique_ptr<Computation> torch_level, Specialise prune = {});

/// The forward graph without its torch level, giving what is computed of its results and, behind that, what the
/// backwards read of it.
graph::Graph forward_of(const graph::Graph& graph, const autograd::Joint& joint);

/// What the graph's random operators draw from.
std::vector<at::Generator> generators_of(const graph::Graph& graph);

}  // namespace magneto::runtime
