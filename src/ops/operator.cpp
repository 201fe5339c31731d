#include "ops/operator.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "ops/kinds.h"
#include "ops/library.h"

namespace magneto::ops {
namespace {

struct Row {
  std::string_view op;
  Fact facts;
};

constexpr Row kRows[] = {
#define ROW_facts(op, facts) {op, facts},
#include "ops/rows.def"
};

constexpr uint64_t kRaises = never_raises | raises_if_narrow | raises_on_integers;

struct Tables {
  /// "aten::add.Tensor"
  std::unordered_map<std::string_view, uint64_t> by_overload;
  /// "aten::add": of the first row.
  std::unordered_map<std::string_view, uint64_t> by_name;
};

const Tables& tables() {
  static const auto* tables = [] {
    auto* made = new Tables;
    for (const Row& row : kRows) {
      TORCH_CHECK(made->by_overload.emplace(row.op, row.facts).second, "magneto: two rows for ", std::string(row.op));
      made->by_name.emplace(row.op.substr(0, row.op.find('.')), row.facts & ~(kOfOneOverload | kKinds));
    }
    return made;
  }();
  return *tables;
}

/// The operator that an in-place one, one on lists or one of ours with sizes does the same as, for errors: its name.
std::string functional_name(std::string_view name) {
  constexpr std::string_view own = "magneto::", aten = "aten::", lists = "_foreach_";
  if (name.starts_with(own)) {
    name.remove_prefix(own.size());
  } else if (name.starts_with(aten)) {
    name.remove_prefix(aten.size());
  } else {
    return {};  // of a library: nobody knows
  }
  if (name.starts_with(lists)) name.remove_prefix(lists.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  return std::string(aten) + std::string(name);
}

Operator find(const c10::OperatorHandle& op) {
  Operator found;
  found.facts = facts_of(op.operator_name());
  const c10::FunctionSchema& schema = op.schema();
  for (const c10::Argument& argument : schema.arguments()) {
    found.writes |= argument.alias_info() && argument.alias_info()->isWrite();
  }
  for (const c10::Argument& result : schema.returns()) found.aliases |= result.alias_info() != nullptr;
  found.view = found.is(view);
  found.aliases |= found.view;
  found.random = op.hasTag(at::Tag::nondeterministic_seeded);
  const bool of_library = !op.operator_name().name.starts_with("aten::");
  found.effect = schema.returns().empty() || found.is(has_effect) || (of_library && !found.is(pure));
  return found;
}

}  // namespace

bool is_of_library(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return !name.starts_with("aten::") && !name.starts_with("prims::") && !name.starts_with("magneto::");
}

uint64_t facts_of(const c10::OperatorName& name) {
  const Tables& known = tables();
  if (const auto row = known.by_overload.find(c10::toString(name)); row != known.by_overload.end()) return row->second;
  if (const auto row = known.by_name.find(name.name); row != known.by_name.end()) return row->second;
  const auto row = known.by_name.find(functional_name(name.name));
  return row == known.by_name.end() ? 0 : row->second & kRaises;
}

const Operator& operator_of(const c10::OperatorHandle& op) {
  // Per thread: no lock. Only PyTorch's own operators stay registered for ever, so only theirs are kept.
  thread_local std::unordered_map<c10::OperatorHandle, Operator> known;
  if (const auto found = known.find(op); found != known.end()) return found->second;
  if (op.operator_name().name.starts_with("aten::")) return known.emplace(op, find(op)).first->second;
  thread_local Operator other;
  return other = find(op);
}

c10::OperatorName parsed(std::string_view name) {
  const size_t dot = name.find('.');
  return {std::string(name.substr(0, dot)), std::string(dot == std::string_view::npos ? "" : name.substr(dot + 1))};
}

}  // namespace magneto::ops
