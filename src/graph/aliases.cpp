#include "graph/aliases.h"

#include <ATen/core/enum_tag.h>

#include <numeric>

#include "ops/operator.h"

namespace magneto::graph {
namespace {

bool aliases_silently(const c10::OperatorHandle& op) { return ops::operator_of(op).is(ops::shares_memory); }

}  // namespace

bool changes_metadata(const c10::OperatorHandle& op) { return op.hasTag(at::Tag::inplace_view); }

std::set<ValueId> changed_in_place(const Graph& graph) {
  std::set<ValueId> changed;
  for (const AtenNode& node : graph.aten_nodes) {
    if (changes_metadata(node.op)) changed.insert(std::get<ValueId>(node.args[0]));
  }
  return changed;
}

bool writes_argument(const c10::FunctionSchema& schema, size_t index) {
  const c10::AliasInfo* alias = schema.arguments()[index].alias_info();
  return alias && alias->isWrite();
}

bool writes_argument(const AtenNode& node, size_t index) {
  const c10::FunctionSchema& schema = node.op.schema();
  if (writes_argument(schema, index)) return true;
  const auto& arguments = schema.arguments();
  if (!arguments[index].name().starts_with("running_")) return false;
  if (!ops::operator_of(node.op).is(ops::moves_statistics)) return false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "training") continue;
    const auto* constant = std::get_if<c10::IValue>(&node.args[i]);
    return !constant || !constant->isBool() || constant->toBool();
  }
  return true;
}

Effects effects_of(const c10::OperatorHandle& op) {
  Effects effects;
  const c10::FunctionSchema& schema = op.schema();
  for (size_t i = 0; i < schema.arguments().size(); ++i) effects.writes |= writes_argument(schema, i);
  for (const c10::Argument& result : schema.returns()) effects.aliases |= result.alias_info() != nullptr;
  return effects;
}

Aliases::Aliases(const Graph& graph) : group_of_(graph.values.size()), groups_(graph.values.size()) {
  std::vector<int32_t>& parent = group_of_;
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](ValueId id) {
    while (parent[id] != id) id = parent[id] = parent[parent[id]];
    return id;
  };
  for (const AtenNode& node : graph.aten_nodes) {
    if (!effects_of(node.op).aliases && !aliases_silently(node.op)) continue;
    // Coarser than the schema's alias sets, on purpose: results share memory with every aliased operand.
    const auto& arguments = node.op.schema().arguments();
    for (size_t i = 0; i < node.args.size(); ++i) {
      if (!arguments[i].alias_info() && !aliases_silently(node.op)) continue;
      for_each_tensor(node.args[i], [&](ValueId operand) {
        for (const ValueId result : node.results) {
          if (result != kNoValue) parent[root(result)] = root(operand);
        }
      });
    }
  }
  for (size_t id = 0; id < parent.size(); ++id) parent[id] = root(static_cast<ValueId>(id));
  for (const AtenNode& node : graph.aten_nodes) {
    for (size_t i = 0; i < node.args.size(); ++i) {
      if (!writes_argument(node, i)) continue;
      for_each_tensor(node.args[i], [&](ValueId operand) { groups_[parent[operand]].written = true; });
    }
  }
  for (const ValueId id : graph.inputs) groups_[parent[id]].input = true;
  for (const ValueId id : graph.outputs) {
    if (id != kNoValue) groups_[parent[id]].output = true;
  }
}

}  // namespace magneto::graph
