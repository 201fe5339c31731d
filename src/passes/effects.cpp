#include "passes/effects.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "graph/aliases.h"

namespace magneto::passes {
namespace {

/// Geometry over the first argument. as_strided is none: it counts from the start of the storage, and where in it an
/// input begins is known at run time only.
constexpr std::string_view kViews[] = {
    "aten::view",    "aten::_unsafe_view", "aten::_reshape_alias",   "aten::t",          "aten::transpose",
    "aten::permute", "aten::unsqueeze",    "aten::squeeze",          "aten::slice",      "aten::select",
    "aten::expand",  "aten::diagonal",     "aten::unfold",           "aten::split",      "aten::unbind",
    "aten::alias",   "aten::detach",       "aten::split_with_sizes", "aten::lift_fresh", "aten::numpy_T",
    "aten::movedim", "aten::swapaxes",
};

/// Effects that no schema shows: batch norm in training moves its running statistics.
constexpr std::string_view kHidden[] = {
    "aten::native_batch_norm",
    "aten::batch_norm",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::_batch_norm_with_update",
    "aten::_assert_async",
    "aten::_assert_scalar",
    "aten::_assert_tensor_metadata",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
    "aten::_print",
    "aten::_functional_assert_async",
};

/// PyTorch's own and ours, though not by their namespace: functions of their arguments and no more.
constexpr std::string_view kPlain[] = {"mkldnn::_convolution_pointwise", "mkldnn::_reorder_convolution_weight",
                                       "magneto::attention"};

OperatorTraits find(const c10::OperatorHandle& op) {
  OperatorTraits traits;
  const std::string& name = op.operator_name().name;
  const graph::Effects effects = graph::effects_of(op);
  const auto listed = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), name) != std::end(list);
  };
  traits.writes = effects.writes;
  traits.view = listed(kViews) && op.operator_name().overload_name != "dtype";
  traits.aliases = effects.aliases || traits.view;
  traits.random = op.hasTag(at::Tag::nondeterministic_seeded);
  traits.effect = op.schema().returns().empty() || listed(kHidden) || !(name.starts_with("aten::") || listed(kPlain));
  return traits;
}

}  // namespace

const OperatorTraits& traits_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, OperatorTraits> known;
  auto found = known.find(op);
  if (found != known.end()) return found->second;
  if (op.operator_name().name.starts_with("aten::")) return known.emplace(op, find(op)).first->second;
  thread_local OperatorTraits other;
  return other = find(op);
}

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

}  // namespace magneto::passes
