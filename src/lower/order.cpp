#include "lower/order.h"

#include <algorithm>
#include <unordered_set>

#include "graph/aliases.h"
#include "ops/operator.h"

namespace magneto::lower {
namespace {

/// And is not told a size, which may be one that only an operator before it says.
bool makes_number(const graph::AtenNode& node) {
  static const std::unordered_set<c10::OperatorName> numbers = {
#define ROW_call_number(op, function) ops::parsed(op),
#include "ops/rows.def"
  };
  return numbers.contains(node.op.operator_name()) && std::ranges::none_of(node.args, [](const graph::AtenArg& arg) {
           return std::holds_alternative<graph::SizeArg>(arg);
         });
}

}  // namespace

std::vector<int32_t> order_of(const graph::Graph& graph) {
  const auto count = static_cast<int32_t>(graph.aten_nodes.size());
  // Behind which operator each one comes: itself, or of a number the last that makes an operand; -1: it comes first.
  std::vector<int32_t> behind(count);
  std::vector<int32_t> order(count);
  for (int32_t i = 0; i < count; ++i) {
    const graph::AtenNode& node = graph.aten_nodes[i];
    order[i] = behind[i] = i;
    if (!makes_number(node)) continue;
    behind[i] = -1;
    graph::for_each_operand(node, [&](graph::ValueId id) {
      const int32_t producer = graph.values[id].producer;
      if (producer >= 0) behind[i] = std::max(behind[i], behind[producer]);
    });
  }
  std::ranges::stable_sort(order, {}, [&](int32_t i) { return behind[i]; });
  return order;
}

}  // namespace magneto::lower
