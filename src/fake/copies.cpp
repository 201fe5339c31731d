#include "fake/copies.h"

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "graph/aliases.h"
#include "ops/kinds.h"

namespace magneto::fake {
namespace {

using graph::AtenNode;
using graph::ValueId;

/// Which operator is the last that writes the memory, by its group.
std::map<int32_t, size_t> last_writes(const graph::Graph& graph, const graph::Aliases& aliases) {
  std::map<int32_t, size_t> last;
  for (size_t i = 0; i < graph.aten_nodes.size(); ++i) {
    const AtenNode& node = graph.aten_nodes[i];
    for (size_t argument = 0; argument < node.args.size(); ++argument) {
      if (!graph::writes_argument(node, argument)) continue;
      graph::for_each_tensor(node.args[argument], [&](ValueId id) { last[aliases.group(id)] = i; });
    }
  }
  return last;
}

/// What PyTorch's code calls where the tensor itself won't do; another operator's results are new in any case.
bool may_copy(const AtenNode& node) {
  const ops::Operator& op = ops::operator_of(node.op);
  if (op.writes && !graph::changes_metadata(node.op)) return false;
  bool reads = false;
  graph::for_each_operand(node, [&](ValueId) { reads = true; });
  return !reads || op.facts == ops::unknown || op.aliases || op.is(ops::keeps_order | ops::looks_only) ||
         ops::is_kind(op, ops::starts_copy);
}

}  // namespace

void ask_about_copies(Session::Impl& session, size_t from) {
  auto& unasked = session.state->purpose.unasked;
  const auto first = std::ranges::stable_partition(unasked, [&](const auto& each) { return each.next < from; }).begin();
  if (first == unasked.end()) return;
  const std::vector<SessionState::Unasked> asked(std::make_move_iterator(first),
                                                 std::make_move_iterator(unasked.end()));
  unasked.erase(first, unasked.end());
  const graph::Graph& graph = session.graph;
  const graph::Aliases aliases(graph);
  const std::map<int32_t, size_t> last = last_writes(graph, aliases);
  // What is written before it is copied is the same in both.
  const auto tells = [&](size_t node) {
    const AtenNode& copy = graph.aten_nodes[node];
    if (!may_copy(copy)) return false;
    const auto is_written_later = [&](ValueId id) {
      if (id == graph::kNoValue) return false;
      const auto write = last.find(aliases.group(id));
      return write != last.end() && write->second > node;
    };
    bool written = std::ranges::any_of(copy.results, is_written_later);
    graph::for_each_operand(copy, [&](ValueId operand) { written |= is_written_later(operand); });
    return written;
  };
  for (const auto& [next, ask] : asked) {
    if (next < graph.aten_nodes.size() && tells(next)) (void)ask();
  }
}

}  // namespace magneto::fake
