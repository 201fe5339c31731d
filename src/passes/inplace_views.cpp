// Tensors that get other sizes or strides in place (`t_`, `squeeze_`): a view with another name.
#include <ATen/core/enum_tag.h>

#include <algorithm>

#include "graph/aliases.h"
#include "graph/partition.h"
#include "passes/effects.h"
#include "passes/passes.h"
#include "passes/view_meta.h"

namespace magneto::passes {
namespace {

using graph::AtenNode;
using graph::Graph;
using graph::ValueId;

bool is_inplace_view(const AtenNode& node) {
  return node.op.hasTag(at::Tag::inplace_view) && node.op.operator_name().name != "aten::as_strided_";
}

/// `t_` has `t`, `transpose_` has `transpose.int`.
std::optional<c10::OperatorHandle> view_operator_of(const c10::OperatorHandle& op) {
  std::string name = op.operator_name().name;
  if (!name.ends_with('_')) return std::nullopt;
  name.pop_back();
  for (const c10::OperatorName& candidate : overloads_of(name)) {
    const auto found = c10::Dispatcher::singleton().findSchema(candidate);
    if (!found || found->schema().returns().size() != 1 || !graph::effects_of(*found).aliases) continue;
    const auto &left = op.schema().arguments(), &right = found->schema().arguments();
    const bool fits = std::ranges::equal(left, right, [](const c10::Argument& a, const c10::Argument& b) {
      return a.name() == b.name() && *a.type() == *b.type();
    });
    if (fits) return found;
  }
  return std::nullopt;
}

}  // namespace

void separate_inplace_views(Graph& graph) {
  if (std::ranges::none_of(graph.aten_nodes, is_inplace_view)) return;
  std::vector<ValueId> names(graph.values.size());
  for (size_t i = 0; i < names.size(); ++i) names[i] = static_cast<ValueId>(i);
  for (size_t i = 0; i < graph.aten_nodes.size(); ++i) {
    AtenNode& node = graph.aten_nodes[i];
    const AtenNode before = node;
    for (graph::AtenArg& arg : node.args) graph::rename(arg, names);
    for (ValueId& id : node.results) {
      if (id != graph::kNoValue) id = names[id];
    }
    if (!is_inplace_view(node)) continue;
    const auto op = view_operator_of(node.op);
    const ValueId source = std::get<ValueId>(before.args[0]), now = std::get<ValueId>(node.args[0]);
    if (!op || graph.values[source].kind == graph::ValueKind::Input ||
        std::ranges::find(graph.outputs, source) != graph.outputs.end())
      continue;
    node.op = *op;
    const ValueId view = graph.add_result(view_metas(node, graph.values[now].meta).at(0), static_cast<int32_t>(i));
    node.results = {view};
    names.push_back(view);
    names[source] = view;
  }
  // The torch level says what the program called: there a tensor has one name.
}

}  // namespace magneto::passes
