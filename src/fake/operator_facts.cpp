#include "fake/operator_facts.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace magneto::fake {

namespace {

/// Operators whose second operand may be a number wrapped as a tensor (`x + 1` dispatches to add.Tensor) and whose
/// scalar overload is by definition the same call on `wrapped_scalar_tensor(number)`. pow and where are missing: their
/// scalar overloads compute or promote differently.
constexpr struct {
  std::string_view tensor, scalar;
} kScalarOverloads[] = {
    {"aten::add.Tensor", "Scalar"},           {"aten::add_.Tensor", "Scalar"},
    {"aten::sub.Tensor", "Scalar"},           {"aten::sub_.Tensor", "Scalar"},
    {"aten::mul.Tensor", "Scalar"},           {"aten::mul_.Tensor", "Scalar"},
    {"aten::div.Tensor", "Scalar"},           {"aten::div_.Tensor", "Scalar"},
    {"aten::div.Tensor_mode", "Scalar_mode"}, {"aten::div_.Tensor_mode", "Scalar_mode"},
    {"aten::floor_divide", "Scalar"},         {"aten::floor_divide_.Tensor", "Scalar"},
    {"aten::remainder.Tensor", "Scalar"},     {"aten::remainder_.Tensor", "Scalar"},
    {"aten::fmod.Tensor", "Scalar"},          {"aten::fmod_.Tensor", "Scalar"},
};

/// Data dependent operators that PyTorch does not tag so.
constexpr std::string_view kUntaggedDataDependent[] = {"aten::is_nonzero", "aten::to_dense"};

/// Of the first tensor they take shape, dtype and device.
constexpr std::string_view kLooksOnly[] = {"aten::zeros_like", "aten::ones_like", "aten::full_like",
                                           "aten::new_zeros",  "aten::new_ones",  "aten::new_full"};

const std::unordered_map<std::string_view, Rule>& rules() {
  static const auto* table = [] {
    auto* table = new std::unordered_map<std::string_view, Rule>;
    auto add = [&](std::span<const RuleRow> rows) {
      for (const RuleRow& row : rows) {
        TORCH_CHECK(table->emplace(row.op, row.rule).second, "magneto: two rules for ", std::string(row.op));
      }
    };
#define X(family) add(family##_rules());
    MAGNETO_RULE_FAMILIES(X)
#undef X
    return table;
  }();
  return *table;
}

/// Of the family of elementwise operators, and not one of the few in it that do more.
bool is_elementwise(std::string_view name) {
  static const auto* names = [] {
    auto* names = new std::unordered_set<std::string_view>;
    for (const RuleRow& row : pointwise_rules()) names->insert(row.op);
    for (const std::string_view other : {"aten::glu", "aten::isin.Tensor_Tensor"}) names->erase(other);
    return names;
  }();
  return names->contains(name);
}

bool is_tensor_like(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  const bool nests = type.kind() == c10::TypeKind::ListType || type.kind() == c10::TypeKind::OptionalType;
  return nests && is_tensor_like(*type.containedType(0));
}

OperatorFacts find_facts(const c10::OperatorHandle& op) {
  OperatorFacts facts;
  const c10::FunctionSchema& schema = op.schema();
  const std::string name = c10::toString(op.operator_name());
  if (auto row = rules().find(name); row != rules().end()) facts.rule = row->second;
  if (!facts.rule && name.starts_with("magneto::")) {  // the same with sizes (runtime/program/sized_operators.def)
    if (auto row = rules().find("aten" + name.substr(name.find("::"))); row != rules().end()) facts.rule = row->second;
  }
  facts.symbolic_rule = symbolic_rule_of(name);
  if (!facts.symbolic_rule && is_elementwise(name)) facts.symbolic_rule = broadcast_symbolically;
  facts.composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  facts.has_backend_kernels =
      op.hasKernelForAnyDispatchKey(c10::DispatchKeySet({c10::DispatchKey::CPU, c10::DispatchKey::CUDA}));
  facts.data_dependent = op.hasTag(at::Tag::data_dependent_output) ||
                         std::ranges::find(kUntaggedDataDependent, name) != std::end(kUntaggedDataDependent);
  facts.dynamic_shape = op.hasTag(at::Tag::dynamic_output_shape);
  facts.replaces_storage = name.starts_with("aten::set_.");
  facts.observer = name.starts_with("profiler::");
  facts.lifts = name == "aten::lift_fresh" || name == "aten::lift";
  bool mutates = schema.returns().empty();
  for (const c10::Argument& argument : schema.arguments()) {
    facts.takes_storage |= argument.type()->kind() == c10::TypeKind::StorageType;
    mutates |= argument.alias_info() && argument.alias_info()->isWrite();
  }
  facts.mutates = mutates;
  const bool determined = !facts.takes_storage && !op.hasTag(at::Tag::nondeterministic_seeded) &&
                          name.starts_with("aten::") && name.find("empty") == std::string::npos &&
                          name.find("resize") == std::string::npos;
  facts.computes = determined && !mutates;
  facts.looks_only = std::ranges::find(kLooksOnly, name) != std::end(kLooksOnly);
  facts.follows = determined && mutates;
  facts.recorded = mutates || std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
                     return is_tensor_like(*result.type());
                   });
  for (const auto& row : kScalarOverloads) {
    if (row.tensor != name) continue;
    facts.scalar_overload = c10::Dispatcher::singleton().findSchema({op.operator_name().name, std::string(row.scalar)});
  }
  return facts;
}

}  // namespace

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  // Per thread: no lock. Only PyTorch's own operators stay registered for ever, so only theirs are kept.
  thread_local std::unordered_map<c10::OperatorHandle, OperatorFacts> known;
  auto found = known.find(op);
  if (found != known.end()) return found->second;
  if (op.operator_name().name.starts_with("aten::")) return known.emplace(op, find_facts(op)).first->second;
  thread_local OperatorFacts other;
  return other = find_facts(op);
}

std::string operator_name(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  std::string text = name.name;
  if (size_t colons = text.find("::"); colons != std::string::npos) text.replace(colons, 2, ".");
  return text + "." + (name.overload_name.empty() ? "default" : name.overload_name);
}

}  // namespace magneto::fake
