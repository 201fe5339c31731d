#include "autograd/kept_gradients.h"

#include <vector>

#include "graph/aliases.h"
#include "passes/view_meta.h"

namespace magneto::autograd {

using graph::ValueId;

void separate_gradients(graph::Graph& graph, size_t begin) {
  static const auto clone = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
  std::vector<bool> leaves(graph.values.size(), false), viewed(graph.values.size(), false);
  for (size_t i = begin; i < graph.outputs.size(); ++i) leaves[graph.outputs[i]] = true;
  for (size_t i = graph.aten_nodes.size(); i-- > 0;) {
    const graph::AtenNode& node = graph.aten_nodes[i];
    const graph::Effects effects = graph::effects_of(node.op);
    if (!effects.aliases || effects.writes) continue;
    bool leads = false;
    for (const ValueId id : node.results) leads |= id != graph::kNoValue && (leaves[id] || viewed[id]);
    if (leads) graph::for_each_operand(node, [&](ValueId id) { viewed[id] = true; });
  }
  for (size_t i = begin; i < graph.outputs.size(); ++i) {
    ValueId& output = graph.outputs[i];
    if (!viewed[output]) continue;
    graph::TensorMeta meta = passes::dense(graph.values[output].meta);
    meta.requires_grad = false;
    const ValueId copy = graph.add_result(std::move(meta), static_cast<int32_t>(graph.aten_nodes.size()));
    graph.aten_nodes.push_back({.op = clone, .args = {output, c10::IValue()}, .results = {copy}});
    output = copy;
  }
}

}  // namespace magneto::autograd
