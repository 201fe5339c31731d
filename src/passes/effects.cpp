#include "passes/effects.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "graph/aliases.h"
#include "ops/kinds.h"

namespace magneto::passes {
const std::vector<c10::OperatorName>& overloads_of(const std::string& name) {
  // Libraries register operators at any time.
  thread_local std::unordered_map<std::string, std::vector<c10::OperatorName>> known;
  if (const auto found = known.find(name); found != known.end() && !found->second.empty()) return found->second;
  std::vector<c10::OperatorName>& list = known[name];
  for (const c10::OperatorName& each : c10::Dispatcher::singleton().getAllOpNames()) {
    if (each.name == name) list.push_back(each);
  }
  std::ranges::sort(list, {}, &c10::OperatorName::overload_name);
  return list;
}

bool is_pinned(const graph::AtenNode& node) {
  const OperatorTraits& traits = traits_of(node.op);
  if (!traits.effect) return traits.random;
  if (node.op.operator_name().name == "aten::native_batch_norm") {
    // Without running statistics there is nothing to move.
    const auto absent = [&](size_t i) {
      const auto* id = std::get_if<graph::ValueId>(&node.args[i]);
      const auto* constant = std::get_if<c10::IValue>(&node.args[i]);
      return (id && *id == graph::kNoValue) || (constant && constant->isNone());
    };
    if (absent(3) && absent(4)) return false;
  }
  // The argument that says so; an operator without one has its effect always.
  const auto& arguments = node.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "training" && arguments[i].name() != "train") continue;
    const auto* constant = std::get_if<c10::IValue>(&node.args[i]);
    return !constant || !constant->isBool() || constant->toBool();
  }
  return true;
}

bool is_repeatable(const graph::AtenNode& node) {
  return !graph::effects_of(node.op).writes && !is_pinned(node) &&
         !ops::is_kind(traits_of(node.op), ops::asks_grad_mode) && !ops::is_kind(traits_of(node.op), ops::keeps_cast);
}

}  // namespace magneto::passes
