#include "debug/graph_part.h"

#include <algorithm>
#include <map>
#include <string>

#include "graph/aliases.h"
#include "graph/partition.h"
#include "graph/text.h"

namespace magneto::debug {

using graph::AtenNode;
using graph::Graph;
using graph::kNoValue;
using graph::SymbolBinding;
using graph::ValueId;
using graph::ValueKind;

Skeleton skeleton_of(const Graph& graph) {
  Skeleton skeleton;
  std::map<std::string, Index> classes;
  for (const graph::Value& value : graph.values) {
    if (value.kind == ValueKind::Constant) {
      skeleton.classes.push_back(Skeleton::kFree);
    } else {
      const auto number = static_cast<Index>(classes.size());
      skeleton.classes.push_back(classes.try_emplace(graph::type_text(value.meta), number).first->second);
    }
  }
  skeleton.inputs = graph.inputs;
  for (const AtenNode& node : graph.aten_nodes) {
    Skeleton::Node& made = skeleton.nodes.emplace_back();
    graph::for_each_operand(node, [&](ValueId id) {
      if (id != kNoValue) made.operands.push_back(id);
    });
    for (const ValueId id : node.results) {
      if (id != kNoValue) made.results.push_back(id);
    }
  }
  for (const ValueId id : graph.outputs) {
    if (graph.values[id].kind != ValueKind::Constant) skeleton.outputs.push_back(id);
  }
  return skeleton;
}

std::vector<ValueId> inputs_of(const Graph& whole, const Skeleton& skeleton, const Part& part) {
  std::vector<ValueId> inputs;
  for (const SymbolBinding& symbol : whole.symbols) {
    if (whole.values[symbol.value].kind == ValueKind::Input) inputs.push_back(symbol.value);
  }
  std::ranges::sort(inputs);
  inputs.erase(std::ranges::unique(inputs).begin(), inputs.end());
  for (const ValueId id : part.inputs(skeleton)) {
    if (std::ranges::find(inputs, id) == inputs.end()) inputs.push_back(id);
  }
  return inputs;
}

Graph graph_of(const Graph& whole, const Skeleton& skeleton, const Part& part) {
  Graph made;
  std::vector<ValueId> map(whole.values.size(), kNoValue);
  for (const ValueId id : inputs_of(whole, skeleton, part)) {
    const graph::Value& value = whole.values[id];
    map[id] = made.add_input(value.kind == ValueKind::Input ? value.name : std::string("v").append(std::to_string(id)),
                             value.meta);
  }
  std::vector<ValueId> read(whole.values.size(), kNoValue);  // what operands are named
  const auto name_constant = [&](ValueId id) {
    if (map[id] == kNoValue && whole.values[id].kind == ValueKind::Constant) {
      map[id] = made.add_constant(whole.values[id].constant);
    }
  };
  for (size_t i = 0; i < whole.aten_nodes.size(); ++i) {
    if (!part.kept[i]) continue;
    AtenNode node = whole.aten_nodes[i];
    graph::for_each_operand(node, [&](ValueId id) {
      if (id == kNoValue) return;
      name_constant(part.read_as[id]);
      read[id] = map[part.read_as[id]];
    });
    for (graph::AtenArg& arg : node.args) graph::rename(arg, read);
    node.torch_node = -1;
    for (ValueId& id : node.results) {
      if (id == kNoValue) continue;
      if (map[id] == kNoValue) {
        map[id] = made.add_result(whole.values[id].meta, static_cast<int32_t>(made.aten_nodes.size()));
      }
      id = map[id];
    }
    made.aten_nodes.push_back(std::move(node));
  }
  for (const ValueId id : part.outputs) made.outputs.push_back(map[part.read_as[id]]);
  for (SymbolBinding symbol : whole.symbols) {
    symbol.value = map[symbol.value];
    if (symbol.value != kNoValue) made.symbols.push_back(symbol);
  }
  return made;
}

}  // namespace magneto::debug
