#include "compiler/forward_first.h"

#include <algorithm>

#include "graph/aliases.h"
#include "passes/effects.h"

namespace magneto::compiler {

using graph::kNoValue;
using graph::ValueId;

size_t put_forward_first(graph::Graph& joint, const std::vector<ValueId>& results,
                         const std::vector<ValueId>& tangents) {
  std::vector<bool> of_tangent(joint.values.size(), false), needed(joint.values.size(), false);
  for (const ValueId id : tangents) of_tangent[id] = true;
  for (const ValueId id : results) {
    if (id != kNoValue) needed[id] = true;
  }
  std::vector<bool> is_first(joint.aten_nodes.size(), false);
  for (size_t i = 0; i < joint.aten_nodes.size(); ++i) {
    const graph::AtenNode& node = joint.aten_nodes[i];
    bool reads = false;
    graph::for_each_operand(node, [&](ValueId id) { reads |= of_tangent[id]; });
    for (const ValueId id : node.results) {
      if (id != kNoValue) of_tangent[id] = of_tangent[id] || reads;
    }
    is_first[i] = !reads && passes::is_pinned(node);
  }
  for (size_t i = joint.aten_nodes.size(); i-- > 0;) {
    const graph::AtenNode& node = joint.aten_nodes[i];
    const auto is_needed = [&](ValueId id) { return id != kNoValue && needed[id]; };
    is_first[i] = is_first[i] || std::ranges::any_of(node.results, is_needed);
    if (is_first[i]) graph::for_each_operand(node, [&](ValueId id) { needed[id] = true; });
  }
  std::vector<graph::AtenNode> nodes;
  for (const bool first : {true, false}) {
    for (size_t i = 0; i < joint.aten_nodes.size(); ++i) {
      if (is_first[i] == first) nodes.push_back(joint.aten_nodes[i]);
    }
  }
  joint.aten_nodes = std::move(nodes);
  for (size_t i = 0; i < joint.aten_nodes.size(); ++i) {
    for (const ValueId id : joint.aten_nodes[i].results) {
      if (id != kNoValue) joint.values[id].producer = static_cast<int32_t>(i);
    }
  }
  return static_cast<size_t>(std::ranges::count(is_first, true));
}

}  // namespace magneto::compiler
