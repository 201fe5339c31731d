// A graph in subgraphs that run stage after stage.
#pragma once

#include <vector>

#include "graph/partition.h"

namespace magneto::graph {

struct Stages {
  /// As `partition` gives them; a part belongs to one stage.
  std::vector<Subgraph> parts;
  /// The part behind each stage.
  std::vector<size_t> ends;
};

/// In front of each of the operators `nodes` (ascending) one stage ends and the next begins.
Stages partition_in_stages(const Graph& graph, const NodeFlags& flags, const std::vector<size_t>& nodes);

}  // namespace magneto::graph
