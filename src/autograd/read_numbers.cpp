#include "autograd/read_numbers.h"

#include <algorithm>
#include <set>

#include "graph/aliases.h"
#include "ops/operator.h"

namespace magneto::autograd {

namespace {

constexpr size_t kMostOperators = 64;

bool is_plain(const graph::AtenNode& node) {
  const ops::Operator& op = ops::operator_of(node.op);
  return node.op.operator_name().name.starts_with("aten::") && !op.random && !op.effect && !op.writes &&
         !graph::has_regions(node);
}

}  // namespace

std::optional<graph::Graph> read_numbers(const graph::Graph& graph, size_t forward) {
  graph::Graph part;
  std::set<graph::ValueId> needed;
  for (const graph::SymbolBinding& binding : graph.symbols) {
    const graph::Value& value = graph.values[binding.value];
    if (value.kind != graph::ValueKind::Result || value.producer < static_cast<int32_t>(forward)) continue;
    const graph::AtenNode& node = graph.aten_nodes[value.producer];
    if (node.op.operator_name().name != "magneto::item") return std::nullopt;
    part.outputs.push_back(std::get<graph::ValueId>(node.args[0]));
    needed.insert(part.outputs.back());
  }
  for (auto node = graph.aten_nodes.rbegin(); node != graph.aten_nodes.rend(); ++node) {
    if (std::ranges::none_of(node->results, [&](graph::ValueId id) { return needed.contains(id); })) continue;
    if (!is_plain(*node) || part.aten_nodes.size() == kMostOperators) return std::nullopt;
    graph::for_each_operand(*node, [&](graph::ValueId id) { needed.insert(id); });
    part.aten_nodes.push_back(*node);
  }
  std::ranges::reverse(part.aten_nodes);
  const graph::Aliases aliases(graph);
  for (const graph::ValueId id : needed) {
    if (aliases.written(id)) return std::nullopt;
    if (graph.values[id].kind == graph::ValueKind::Input) part.inputs.push_back(id);
  }
  part.values = graph.values;
  return part;
}

}  // namespace magneto::autograd
