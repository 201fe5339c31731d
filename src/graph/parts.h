// A graph in which operators find numbers on the way that only the data says: in parts, before, there and after.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace magneto::graph {

struct Part {
  /// What comes from outside is an input. Its symbols are bound to inputs, unless the part finds them.
  Graph graph;
  /// Its operators are those that find numbers.
  bool finds = false;
  /// Of the whole graph: what the inputs and the outputs are, and what no later part reads.
  std::vector<ValueId> inputs, outputs, dead;
};

/// The parts in order; none where a constant is written or handed out, whose copy belongs to a run and not to a part,
/// or where a size in front of what finds it stands for an earlier one.
std::vector<Part> parts_of(const Graph& graph);

/// Names the tensors of an argument, or a node, as `map` says; what has no name there is None.
void rename(AtenArg& arg, const std::vector<ValueId>& map);
void rename(TorchNode& node, const std::vector<ValueId>& map);

}  // namespace magneto::graph
