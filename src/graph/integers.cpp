#include "graph/integers.h"

#include <algorithm>
#include <limits>

namespace magneto::graph {

namespace {

shapes::Range integers_of(c10::ScalarType dtype) {
  const auto all_of = [](auto zero) {
    using Integer = decltype(zero);
    return shapes::Range{std::numeric_limits<Integer>::min(), std::numeric_limits<Integer>::max()};
  };
  switch (dtype) {
    case c10::kByte:
      return all_of(uint8_t{});
    case c10::kChar:
      return all_of(int8_t{});
    case c10::kShort:
      return all_of(int16_t{});
    case c10::kInt:
      return all_of(int32_t{});
    default:
      return {};
  }
}

}  // namespace

shapes::Range integers_that_fit(const Graph& graph, ValueId number) {
  shapes::Range fitting;
  for (const AtenNode& node : graph.aten_nodes) {
    if (node.op.operator_name().name != "aten::where" || node.args.size() != 3 || node.results[0] == kNoValue) continue;
    const auto is_number = [&](const AtenArg& arg) {
      const auto* value = std::get_if<ValueId>(&arg);
      return value && *value == number;
    };
    if (!is_number(node.args[1]) && !is_number(node.args[2])) continue;
    const shapes::Range range = integers_of(graph.values[node.results[0]].meta.dtype);
    fitting = {std::max(fitting.low, range.low), std::min(fitting.high, range.high)};
  }
  return fitting;
}

}  // namespace magneto::graph
