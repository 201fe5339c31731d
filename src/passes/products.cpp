// Matrix products with a bias: PyTorch's addmm first copies the bias to each row of the result, which the product then
// reads and adds to. Where generated kernels read the result, they add the bias, and the product only writes.
#include <algorithm>

#include "graph/aliases.h"
#include "passes/effects.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace magneto::passes {
namespace {

using graph::AtenNode;
using graph::kNoValue;
using graph::ValueId;

/// By value: whether something else than a generated kernel reads it, by itself or through views.
std::vector<bool> read_by_others(const Functional& functional) {
  const graph::Graph& graph = functional.graph;
  std::vector<bool> others(graph.values.size(), false);
  for (const ValueId id : graph.outputs) others[id] = true;
  for (const auto& write : functional.writes) others[write.value] = true;
  for (size_t i = graph.aten_nodes.size(); i-- > 0;) {
    const AtenNode& node = graph.aten_nodes[i];
    const OperatorTraits& traits = traits_of(node.op);
    bool other = !traits.is(ops::fuses);
    if (traits.view) {
      other = std::any_of(node.results.begin(), node.results.end(),
                          [&](ValueId id) { return id != kNoValue && others[id]; });
    }
    if (other) graph::for_each_operand(node, [&](ValueId id) { others[id] = true; });
  }
  return others;
}

}  // namespace

void separate_bias(Functional& functional) {
  const auto splits = [others = read_by_others(functional)](const AtenNode& node, const graph::Graph& graph) {
    if (node.op.operator_name().name != "aten::addmm" || others[node.results[0]]) return false;
    // Narrower dtypes would be rounded once more.
    return graph.values[node.results[0]].meta.dtype == c10::kFloat && is_one(node.args[3]) && is_one(node.args[4]);
  };
  const auto& nodes = functional.graph.aten_nodes;
  if (std::none_of(nodes.begin(), nodes.end(), [&](const auto& node) { return splits(node, functional.graph); }))
    return;
  rewrite(functional, [&](Rewriter& out) {
    const c10::OperatorHandle product = find_op("aten::mm"), sum = find_op("aten::add", "Tensor");
    for (const AtenNode& node : out.old().aten_nodes) {
      if (!splits(node, out.old())) {
        out.copy(node);
        continue;
      }
      const std::vector<graph::AtenArg> args = out.map_args(node);
      const graph::TensorMeta& meta = out.old().values[node.results[0]].meta;
      const ValueId made = out.add(product, {args[1], args[2]}, {&meta}, node.torch_node)[0];
      out.set(node.results[0], out.add(sum, {made, args[0], c10::IValue(1)}, {&meta}, node.torch_node)[0]);
    }
  });
}

}  // namespace magneto::passes
