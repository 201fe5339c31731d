// How a region comes out of the graph in which its operators were recorded, and how it gets sizes of its own.
#pragma once

#include <memory>
#include <vector>

#include "graph/graph.h"

namespace magneto::graph {

/// Operators of a graph as a graph of their own.
struct Cut {
  Graph graph;
  /// What its inputs are in the graph around, as many as graph.inputs.
  std::vector<ValueId> inputs;
};

/// The operators from `first` on, and their torch calls. `outputs`: of the whole graph; each is made by one of them, or
/// becomes an input. Nothing requires gradients there. Symbols are still those of the whole graph.
Cut cut(const Graph& whole, size_t first, const std::vector<ValueId>& outputs);

/// Gives the cut these inputs, in this order; all that it has are among them.
void set_inputs(Cut& cut, const Graph& whole, const std::vector<ValueId>& inputs);

/// Some operator draws random numbers.
bool is_random(const Graph& graph);

/// When the sizes of a graph are final, its regions, which `owned` holds and which have been put in the same terms, get
/// symbols of their own: each is found in an input, which the operator that has the region is given in addition where
/// it is missing. Operators that share a region get one each. The torch calls give the sizes in front of the tensors,
/// as torch.fx modules take them.
void close_regions(Graph& graph, std::vector<std::shared_ptr<Region>>& owned);

}  // namespace magneto::graph
