// Tensors that get other sizes or strides in place (`t_`, `squeeze_`): a view with another name.
#include <ATen/core/enum_tag.h>

#include <algorithm>

#include "fake/operator_facts.h"
#include "ops/operator.h"
#include "passes/passes.h"
#include "passes/view_meta.h"

namespace magneto::passes {
namespace {

using graph::AtenNode;
using graph::Graph;
using graph::ValueId;

bool is_inplace_view(const AtenNode& node) {
  return node.op.hasTag(at::Tag::inplace_view) && !ops::operator_of(node.op).is(ops::restrides);
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
    const std::optional<c10::OperatorHandle>& op = fake::facts_of(node.op).view_operator;
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
