// Graphs of which a part does not compile: which operators are called as they are.
#include <ATen/core/enum_tag.h>

#include <algorithm>

#include "graph/aliases.h"
#include "graph/text.h"
#include "passes/effects.h"
#include "passes/passes.h"

namespace magneto::passes {

using graph::AtenNode;
using graph::Graph;
using graph::ValueId;

bool is_dense_cpu(const graph::TensorMeta& meta) {
  return meta.device.is_cpu() && meta.strides.size() == meta.sizes.size() && !c10::isComplexType(meta.dtype) &&
         !c10::isQIntType(meta.dtype);
}

graph::NodeFlags node_flags(const Graph& graph) {
  graph::NodeFlags flags;
  const auto other = [&](ValueId id) { return id != graph::kNoValue && !is_dense_cpu(graph.values[id].meta); };
  for (const AtenNode& node : graph.aten_nodes) {
    bool called = std::ranges::any_of(node.results, other);
    graph::for_each_operand(node, [&](ValueId id) { called |= other(id); });
    flags.called.push_back(called);
    flags.view.push_back(traits_of(node.op).view);
  }
  Graph copy = graph;
  copy.torch_nodes.clear();
  for (AtenNode& node : copy.aten_nodes) node.torch_node = -1;
  for (const int32_t node : refused_nodes(std::move(copy))) flags.called[node] = true;
  return flags;
}

bool can_cut(const Graph& graph) {
  // Code for each size is better than calls for all.
  if (!graph.symbols.empty()) return false;
  // What is known of a value in one part holds in all.
  const auto changes = [](const AtenNode& node) { return node.op.hasTag(at::Tag::inplace_view); };
  if (std::ranges::any_of(graph.aten_nodes, changes)) return false;
  const graph::Aliases aliases(graph);
  for (ValueId id = 0; id < static_cast<ValueId>(graph.values.size()); ++id) {
    if (graph.values[id].kind == graph::ValueKind::Constant && aliases.needs_copy(id)) return false;
  }
  const std::vector<bool> called = node_flags(graph).called;
  return std::ranges::count(called, true) != 0 && std::ranges::count(called, false) != 0;
}

}  // namespace magneto::passes
