// Which values of a graph may share memory, and what happens to that memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "graph/graph.h"

namespace magneto::graph {

/// What a schema says of one operator's memory.
struct Effects {
  /// Some argument is written.
  bool writes = false;
  /// Some result is a view of an argument, or the argument itself.
  bool aliases = false;
};
Effects effects_of(const c10::OperatorHandle& op);

/// It changes the sizes or strides of its first argument in place (`t_`, `squeeze_`, `as_strided_`).
bool changes_metadata(const c10::OperatorHandle& op);
/// Values that this happens to: `meta` says what they are before, and a view of one may be of what it was then.
std::set<ValueId> changed_in_place(const Graph& graph);

/// True when the operator writes its argument `index`, by its schema.
bool writes_argument(const c10::FunctionSchema& schema, size_t index);
/// Also what no schema shows: batch norm in training moves its running statistics.
bool writes_argument(const AtenNode& node, size_t index);

/// Calls `visit(ValueId)` for each tensor operand, also those in lists; not for absent ones.
template <typename Visit>
void for_each_tensor(const AtenArg& arg, Visit visit) {
  if (const auto* id = std::get_if<ValueId>(&arg)) {
    if (*id != kNoValue) visit(*id);
  } else if (const auto* ids = std::get_if<std::vector<ValueId>>(&arg)) {
    for (const ValueId item : *ids) {
      if (item != kNoValue) visit(item);
    }
  }
}
template <typename Visit>
void for_each_operand(const AtenNode& node, Visit visit) {
  for (const AtenArg& arg : node.args) for_each_tensor(arg, visit);
}

/// Calls `visit(const Region&)` for each region of the graph's operators, in order; not for regions inside these.
template <typename Visit>
void for_each_region(const Graph& graph, Visit visit) {
  for (const AtenNode& node : graph.aten_nodes) {
    for (const AtenArg& arg : node.args) {
      if (const auto* region = std::get_if<std::shared_ptr<const Region>>(&arg)) visit(**region);
    }
  }
}

/// The operator runs regions.
inline bool has_regions(const AtenNode& node) {
  const auto is_region = [](const AtenArg& arg) { return std::holds_alternative<std::shared_ptr<const Region>>(arg); };
  return std::ranges::any_of(node.args, is_region);
}

/// Values grouped by the memory that they may share (views, in-place results).
class Aliases {
 public:
  explicit Aliases(const Graph& graph);

  /// Equal for values that may share memory.
  int32_t group(ValueId id) const { return group_of_[id]; }
  /// Some operator may write the memory of `id`.
  bool written(ValueId id) const { return groups_[group_of_[id]].written; }
  /// The memory is handed out as an output.
  bool output(ValueId id) const { return groups_[group_of_[id]].output; }
  /// The memory may belong to an input.
  bool input(ValueId id) const { return groups_[group_of_[id]].input; }

  /// A constant that some run could change or keep: each run needs its own copy, as eager makes one.
  bool needs_copy(ValueId constant) const { return written(constant) || output(constant); }

 private:
  struct Group {
    bool written = false;
    bool output = false;
    bool input = false;
  };

  std::vector<int32_t> group_of_;
  std::vector<Group> groups_;
};

}  // namespace magneto::graph
