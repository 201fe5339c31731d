#include "fake/operator_facts.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ops/kinds.h"

namespace magneto::fake {

namespace {

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

bool is_tensor_like(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  const bool nests = type.kind() == c10::TypeKind::ListType || type.kind() == c10::TypeKind::OptionalType;
  return nests && is_tensor_like(*type.containedType(0));
}

/// Tensor becomes Scalar, Tensor_mode becomes Scalar_mode; floor_divide's for tensors has no name.
std::optional<c10::OperatorHandle> scalar_overload_of(c10::OperatorName name) {
  constexpr std::string_view tensor = "Tensor";
  if (name.overload_name.starts_with(tensor)) name.overload_name.erase(0, tensor.size());
  name.overload_name.insert(0, "Scalar");
  return c10::Dispatcher::singleton().findSchema(name);
}

/// `squeeze_.dim` has `squeeze.dim`, `transpose_` has `transpose.int`.
std::optional<c10::OperatorHandle> view_operator_of(const c10::OperatorHandle& op) {
  if (!op.hasTag(at::Tag::inplace_view)) return {};
  if (ops::operator_of(op).is(ops::restrides))
    return c10::Dispatcher::singleton().findSchema({"aten::_reshape_alias", ""});
  c10::OperatorName name = op.operator_name();
  name.name.pop_back();
  std::optional<c10::OperatorHandle> found = c10::Dispatcher::singleton().findSchema(name);
  if (!found) {
    name.overload_name = "int";
    found = c10::Dispatcher::singleton().findSchema(name);
  }
  const ops::Operator* row = found ? &ops::operator_of(*found) : nullptr;
  return row && row->is(ops::fixed_view) ? found : std::nullopt;
}

OperatorFacts find_facts(const c10::OperatorHandle& op) {
  OperatorFacts facts;
  const ops::Operator& known = ops::operator_of(op);
  const c10::FunctionSchema& schema = op.schema();
  const std::string name = c10::toString(op.operator_name());
  if (auto row = rules().find(name); row != rules().end()) facts.rule = row->second;
  if (!facts.rule && name.starts_with("magneto::")) {  // the same with sizes (call column: sized)
    if (auto row = rules().find("aten" + name.substr(name.find("::"))); row != rules().end()) facts.rule = row->second;
  }
  facts.symbolic_rule = symbolic_rule_of(name);
  facts.composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  facts.has_backend_kernels =
      op.hasKernelForAnyDispatchKey(c10::DispatchKeySet({c10::DispatchKey::CPU, c10::DispatchKey::CUDA}));
  facts.data_dependent = op.hasTag(at::Tag::data_dependent_output) || known.is(ops::reads_data);
  facts.dynamic_shape = op.hasTag(at::Tag::dynamic_output_shape);
  facts.replaces_storage = known.is(ops::replaces_storage);
  facts.observer = name.starts_with("profiler::");
  facts.lifts = known.is(ops::lifts);
  facts.makes_zeros = ops::is_kind(known, ops::makes_zeros);
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
  facts.looks_only = known.is(ops::looks_only);
  facts.follows = determined && mutates;
  facts.recorded = mutates || std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
                     return is_tensor_like(*result.type());
                   });
  facts.view_operator = view_operator_of(op);
  if (known.is(ops::scalar_overload)) facts.scalar_overload = scalar_overload_of(op.operator_name());
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
