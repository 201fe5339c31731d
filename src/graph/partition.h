// A graph in subgraphs: operators that are called as they are (they find data-dependent sizes, or nothing compiles
// them), and what stands between these.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace magneto::graph {

struct Subgraph {
  /// What comes from outside is an input. Its symbols are bound to inputs, unless the part finds them.
  Graph graph;
  /// Its operators run one by one: they find numbers, or the caller said so.
  bool called = false;
  /// Of the whole graph: what the inputs and the outputs are, and what no later part reads.
  std::vector<ValueId> inputs, outputs, dead;
};

/// What the caller knows of each node; empty: nothing.
struct NodeFlags {
  /// Is called as it is.
  std::vector<bool> called;
  /// Gives a view of its first argument by metadata alone. A part makes such views anew from their base, so that what
  /// it writes to the base is seen in them.
  std::vector<bool> view;
};

/// The parts in order; none where a constant is written or handed out, whose copy belongs to a run and not to a part,
/// or where a size in front of what finds it stands for an earlier one.
std::vector<Subgraph> partition(const Graph& graph, const NodeFlags& flags = {});

/// Names the tensors of an argument, or a node, as `map` says; what has no name there is None.
void rename(AtenArg& arg, const std::vector<ValueId>& map);
void rename(TorchNode& node, const std::vector<ValueId>& map);

}  // namespace magneto::graph
