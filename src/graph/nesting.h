// A flat graph as the calls of modules that it was: which nodes belong to which call, and what these calls take and
// give.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace magneto::graph {

/// What stands in a part, in order: a node, or another part (`part` >= 0).
struct PartItem {
  int32_t node = -1;
  int32_t part = -1;
};

/// A call of a module.
struct Part {
  std::string key;  // of the call; of the whole graph ""
  int32_t parent = -1;
  std::vector<PartItem> items;
  /// Nodes from outside that it reads, and nodes of its own that are read outside; each in the order of the graph.
  std::vector<int32_t> inputs, outputs;
};

struct FlatNode {
  std::vector<std::string> calls;  // the outermost one first
  std::vector<int32_t> uses;       // nodes in front of it
};

/// The first part is the whole graph. A call whose nodes others interrupt becomes several parts.
std::vector<Part> nest(const std::vector<FlatNode>& nodes);

}  // namespace magneto::graph
