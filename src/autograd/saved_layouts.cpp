#include "autograd/saved_layouts.h"

#include <c10/core/MemoryFormat.h>

#include <map>
#include <numeric>

#include "graph/aliases.h"
#include "graph/partition.h"
#include "passes/layout.h"

namespace magneto::autograd {
namespace {

using graph::Graph;
using graph::TensorMeta;
using graph::ValueId;

graph::AtenNode clone_of(ValueId id, c10::MemoryFormat format, ValueId result) {
  return {.op = passes::clone(),
          .args = {id, c10::IValue(static_cast<int64_t>(format))},
          .results = {result},
          .torch_node = -1};
}

/// `backward` with these of its inputs channels-last, by position.
void read_channels_last(Backward& backward, const std::vector<size_t>& positions) {
  Graph& graph = backward.graph;
  for (graph::Value& value : graph.values) {
    if (value.kind == graph::ValueKind::Result) value.producer += static_cast<int32_t>(positions.size());
  }
  std::vector<ValueId> map(graph.values.size());
  std::iota(map.begin(), map.end(), 0);
  std::vector<graph::AtenNode> nodes;
  for (const size_t position : positions) {
    const ValueId input = graph.inputs[position];
    map[input] = graph.add_result(graph.values[input].meta, static_cast<int32_t>(nodes.size()));
    passes::turn(graph.values[input].meta);
    nodes.push_back(clone_of(input, c10::MemoryFormat::Contiguous, map[input]));
  }
  for (graph::AtenNode& node : graph.aten_nodes) {
    for (graph::AtenArg& arg : node.args) graph::rename(arg, map);
    nodes.push_back(std::move(node));
  }
  graph.aten_nodes = std::move(nodes);
  for (ValueId& output : graph.outputs) output = map[output];
  for (size_t& end : backward.ends) end += positions.size();
}

}  // namespace

void save_channels_last(Graph& forward, Joint& joint) {
  const std::vector<bool> images = passes::channels_last_values(forward);
  if (images.empty()) return;
  const graph::Aliases aliases(forward);
  std::set<int32_t> handed_out;
  for (const Results::Computed& computed : joint.results.computed) handed_out.insert(aliases.group(computed.value));

  std::map<ValueId, ValueId> turned;
  for (Backward& backward : joint.backwards) {
    std::vector<size_t> positions;
    for (size_t i = 0; i + backward.reread < backward.saved.size(); ++i) {
      ValueId& id = backward.saved[i];
      if (!images[id] || aliases.input(id) || handed_out.contains(aliases.group(id))) continue;
      const auto [entry, added] = turned.try_emplace(id, graph::kNoValue);
      if (added) {
        TensorMeta meta = forward.values[id].meta;
        passes::turn(meta);
        entry->second = forward.add_result(std::move(meta), static_cast<int32_t>(forward.aten_nodes.size()));
        forward.aten_nodes.push_back(clone_of(id, c10::MemoryFormat::ChannelsLast, entry->second));
      }
      id = entry->second;
      positions.push_back(i);
    }
    if (!positions.empty()) read_channels_last(backward, positions);
  }
}

}  // namespace magneto::autograd
