#include "autograd/common_reads.h"

#include <numeric>
#include <string>
#include <unordered_map>

#include "graph/aliases.h"
#include "graph/operator_key.h"
#include "graph/partition.h"
#include "passes/effects.h"

namespace magneto::autograd {

using graph::AtenNode;
using graph::kNoValue;
using graph::ValueId;

std::optional<graph::Graph> with_common_reads(const graph::Graph& joint, const JointRange& range,
                                              const PartitionWay& way, std::vector<ValueId>& gradients) {
  const graph::Aliases aliases(joint);
  std::vector<ValueId> first(joint.values.size());
  std::iota(first.begin(), first.end(), 0);
  const auto stays = [&](const AtenNode& node) {
    // What a checkpoint computes is to be computed again, not saved for another's sake.
    if (node.torch_node >= 0 && way.checkpoints.contains(joint.torch_nodes[node.torch_node].target.get())) return true;
    bool written = !passes::is_repeatable(node);
    graph::for_each_operand(node, [&](ValueId id) { written |= aliases.written(id); });
    for (const ValueId id : node.results) written |= id != kNoValue && (aliases.written(id) || aliases.output(id));
    return written;
  };
  std::unordered_map<std::string, const AtenNode*> known;
  bool any = false;
  for (size_t i = 0; i < range.forward; ++i) {
    const AtenNode& node = joint.aten_nodes[i];
    if (stays(node)) continue;
    const std::string key = graph::operator_key(node, [&](ValueId id) { return first[id]; });
    if (key.empty()) continue;
    const auto [entry, added] = known.try_emplace(key, &node);
    if (added) continue;
    for (size_t k = 0; k < node.results.size(); ++k) {
      const ValueId id = node.results[k], same = entry->second->results[k];
      if (id == kNoValue || same == kNoValue) continue;
      first[id] = first[same];
      any = true;
    }
  }
  if (!any) return std::nullopt;
  graph::Graph merged = joint;
  for (size_t i = range.begin; i < range.end; ++i) {
    for (graph::AtenArg& arg : merged.aten_nodes[i].args) graph::rename(arg, first);
  }
  for (ValueId& id : gradients) id = first[id];
  return merged;
}

}  // namespace magneto::autograd
