#include "autograd/buckets.h"

#include <algorithm>

#include "graph/aliases.h"

namespace magneto::autograd {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::ValueId;

/// A part is run with code of its own: what it needs of others must be tensors, whose form it knows.
bool can_be_cut(const Graph& graph, const graph::Aliases& aliases) {
  if (!graph.symbols_of(graph::ValueKind::Result).empty() || !graph::changed_in_place(graph).empty()) return false;
  for (ValueId id = 0; id < static_cast<ValueId>(graph.values.size()); ++id) {
    if (graph.values[id].kind == graph::ValueKind::Constant && aliases.needs_copy(id)) return false;
  }
  return true;
}

/// By memory: how many operators must have run for nobody to read or write it any more.
std::vector<size_t> last_uses(const Graph& graph, const graph::Aliases& aliases) {
  std::vector<size_t> last(graph.values.size(), 0);
  for (size_t i = 0; i < graph.aten_nodes.size(); ++i) {
    const auto use = [&](ValueId id) {
      if (id != kNoValue) last[aliases.group(id)] = i + 1;
    };
    graph::for_each_operand(graph.aten_nodes[i], use);
    std::ranges::for_each(graph.aten_nodes[i].results, use);
  }
  return last;
}

/// By leaf: how many operators must have run before whoever gets its gradient may do with it, and with the leaf itself
/// (an optimizer in a hook), whatever he likes.
std::vector<size_t> completions(const Graph& forward, const Backward& backward, const graph::Aliases& aliases) {
  const Graph& graph = backward.graph;
  const std::vector<size_t> last = last_uses(graph, aliases);
  const graph::Aliases of_forward(forward);
  std::vector<size_t> complete;
  for (const Backward::Leaf& leaf : backward.leaves) {
    size_t& at = complete.emplace_back(last[aliases.group(graph.outputs[leaf.gradient])]);
    for (size_t i = 0; i < backward.saved.size() && !leaf.root; ++i) {
      const bool same = of_forward.group(backward.saved[i]) == of_forward.group(leaf.input);
      if (same) at = std::max(at, last[aliases.group(graph.inputs[i])]);
    }
  }
  return complete;
}

int64_t bytes_of(const graph::TensorMeta& meta) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(meta.dtype));
  for (const int64_t size : meta.sizes) bytes *= size;
  return bytes;
}

/// What has come of the gradients of one DistributedDataParallel.
struct Filling {
  const Buckets& buckets;
  size_t full = 0;
  int64_t bytes = 0;

  /// The bucket that is being filled is full.
  bool add(int64_t more) {
    bytes += more;
    if (bytes < buckets.limits[std::min(full, buckets.limits.size() - 1)]) return false;
    ++full;
    bytes = 0;
    return true;
  }
};

void cut(const Graph& forward, const std::vector<Buckets>& all, Backward& backward) {
  const graph::Aliases aliases(backward.graph);
  if (!can_be_cut(backward.graph, aliases)) return;
  const std::vector<size_t> complete = completions(forward, backward, aliases);
  std::vector<size_t> leaves(complete.size());
  for (size_t i = 0; i < leaves.size(); ++i) leaves[i] = i;
  std::ranges::stable_sort(leaves, {}, [&](size_t leaf) { return complete[leaf]; });
  std::vector<Filling> fillings;
  for (const Buckets& buckets : all) fillings.push_back({buckets});
  for (const size_t leaf : leaves) {
    // Whatever is complete with the last gradient of a bucket belongs to its part.
    const ValueId input = backward.leaves[leaf].input;
    for (Filling& filling : fillings) {
      if (!filling.buckets.parameters.contains(input) || !filling.add(bytes_of(forward.values[input].meta))) continue;
      const bool is_new = backward.ends.empty() || backward.ends.back() < complete[leaf];
      if (is_new && complete[leaf] > 0) backward.ends.push_back(complete[leaf]);
    }
  }
  // The last part gives some gradient, or there were nothing for the exchange before it to overlap with.
  std::erase_if(backward.ends, [&](size_t end) { return end >= complete[leaves.back()]; });
  for (size_t leaf = 0; leaf < complete.size(); ++leaf) {
    const auto end = std::ranges::lower_bound(backward.ends, complete[leaf]);
    backward.leaves[leaf].part = static_cast<size_t>(end - backward.ends.begin());
  }
}

}  // namespace

void cut_at_buckets(const Graph& forward, const std::vector<Buckets>& all, Joint& joint) {
  if (all.empty()) return;
  for (Backward& backward : joint.backwards) cut(forward, all, backward);
}

}  // namespace magneto::autograd
