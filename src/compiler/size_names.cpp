#include "compiler/size_names.h"

#include <algorithm>
#include <map>

#include "guards/failure.h"
#include "shapes/condition.h"

namespace magneto::compiler {
namespace {

using guards::SizeAssumptions;
using guards::SizePlace;
using shapes::Expr;
using shapes::ExprKind;

constexpr int64_t kSmallest = 2;  // sizes of 0 and 1 are other programs, whatever is said
constexpr int64_t kAny = int64_t{1} << 40;

/// factor * symbol + term.
struct Linear {
  int32_t symbol;
  int64_t factor, term;
};

std::optional<Linear> linear(Expr expr) {
  if (expr.kind() == ExprKind::Symbol) return Linear{expr.id(), 1, 0};
  if (expr.kind() != ExprKind::Sum || expr.operands().size() != 1) return std::nullopt;
  const Expr operand = expr.operands().front();
  if (operand.kind() != ExprKind::Symbol || expr.coefficients().front() < 1) return std::nullopt;
  return Linear{operand.id(), expr.coefficients().front(), expr.number()};
}

class NameCheck {
 public:
  explicit NameCheck(const std::vector<NamedSize>& sizes) {
    for (const NamedSize& size : sizes) {
      by_place_["L['" + size.argument + "'].size()[" + std::to_string(size.dim) + "]"] = &size;
      if (order_of(size.name) == order_.size()) order_.push_back(size.name);
    }
  }

  void check(const SizeAssumptions& assumed) {
    for (const SizeAssumptions::Symbol& symbol : assumed.symbols) check_range(symbol);
    for (const SizeAssumptions::Same& same : assumed.same) {
      const auto is = linear(same.is);
      if (same.is.is_constant()) check_constant(same.place.name(), same.is.number());
      if (is) check_related(same.place.name(), place_of(is->symbol, assumed), is->factor, is->term);
    }
    for (const shapes::Relation& relation : assumed.relations) {
      if (relation.kind == shapes::Relation::Kind::Zero) check_zero(relation, assumed);
      if (relation.kind == shapes::Relation::Kind::AtLeastZero) check_bound(relation, assumed);
    }
  }

  std::string message() const {
    if (problems_.empty()) return {};
    std::string text = "Constraints violated (";
    for (size_t i = 0; i < violated_.size(); ++i) text += (i > 0 ? ", " : "") + violated_[i];
    text += ")! For more information, run with TORCH_LOGS=\"+dynamic\".";
    for (const std::string& problem : problems_) text += "\n  - " + problem;
    text += "\n\nSuggested fixes:";
    for (const auto& [name, bounds] : bounds_) {
      if (find(others_, name)) continue;
      text += "\n  " + name + " = Dim('" + name + "'";
      if (bounds.low) text += ", min=" + std::to_string(*bounds.low);
      if (bounds.high) text += ", max=" + std::to_string(*bounds.high);
      text += ")";
    }
    for (const auto& [name, what] : others_) {
      if (what.ends_with("*_" + name)) text += "\n  _" + name + " = Dim('_" + name + "')";
      text += "\n  " + name + " = " + what;
    }
    return text;
  }

 private:
  struct Bounds {
    std::optional<int64_t> low, high;
  };
  template <typename Value>
  using ByName = std::vector<std::pair<std::string, Value>>;  // in order

  template <typename Value>
  static const Value* find(const ByName<Value>& rows, const std::string& name) {
    const auto found = std::ranges::find(rows, name, [](const auto& row) { return row.first; });
    return found == rows.end() ? nullptr : &found->second;
  }

  template <typename Value>
  static Value& at(ByName<Value>& rows, const std::string& name, Value first) {
    if (const Value* known = find(rows, name)) return const_cast<Value&>(*known);
    return rows.emplace_back(name, std::move(first)).second;
  }

  size_t order_of(const std::string& name) const { return std::ranges::find(order_, name) - order_.begin(); }

  const NamedSize* named(const std::string& place) const {
    const auto found = by_place_.find(place);
    return found == by_place_.end() ? nullptr : found->second;
  }

  static std::string place_of(int32_t id, const SizeAssumptions& assumed) {
    const auto symbol = std::ranges::find(assumed.symbols, id, &SizeAssumptions::Symbol::id);
    return symbol == assumed.symbols.end() ? "" : symbol->place.name();
  }

  void violate(const std::string& name, std::string problem) {
    if (!std::ranges::count(violated_, name)) violated_.push_back(name);
    problems_.push_back(std::move(problem));
  }

  void violate_range(const std::string& name, const std::string& place, const std::string& guard) {
    violate(name, "Not all values of " + name + " = " + place + " in the specified range satisfy the generated guard " +
                      guard);
  }

  void check_range(const SizeAssumptions::Symbol& symbol) {
    const std::string place = symbol.place.name();
    std::string guard = std::to_string(symbol.range.low) + " <= " + place;
    if (symbol.range.high < guards::kMostSize) guard += " <= " + std::to_string(symbol.range.high);
    check_bounds(place, symbol.range, guard);
  }

  /// `s0 <= 16`
  void check_bound(const shapes::Relation& relation, const SizeAssumptions& assumed) {
    const Expr difference = relation.difference;
    if (difference.kind() != ExprKind::Sum || difference.operands().size() != 1) return;
    const Expr operand = difference.operands().front();
    const int64_t sign = difference.coefficients().front();
    if (operand.kind() != ExprKind::Symbol || (sign != 1 && sign != -1)) return;
    shapes::Range range{0, guards::kMostSize};
    (sign > 0 ? range.low : range.high) = sign > 0 ? -difference.number() : difference.number();
    check_bounds(place_of(operand.id(), assumed), range, guards::in_places(shapes::condition(relation), assumed));
  }

  void check_bounds(const std::string& place, shapes::Range range, const std::string& guard) {
    const NamedSize* size = named(place);
    if (!size) return;
    std::optional<int64_t> least, most;
    if (range.low > std::max(size->low.value_or(0), kSmallest)) least = range.low;
    if (range.high < std::min(size->high.value_or(kAny), kAny)) most = range.high;
    if (!least && !most) return;
    violate_range(size->name, place, guard);
    const auto said = size->low.value_or(0) > kSmallest ? size->low : std::nullopt;
    Bounds& bounds = at(bounds_, size->name, Bounds{said, size->high});
    if (least) bounds.low = std::max(*least, bounds.low.value_or(0));
    if (most) bounds.high = std::min(*most, bounds.high.value_or(kAny));
  }

  void check_constant(const std::string& place, int64_t number) {
    const NamedSize* size = named(place);
    if (!size || find(others_, size->name)) return;
    violate(size->name, size->name + " = " + place + " may vary, but the program is valid for the size " +
                            std::to_string(number) + " alone.");
    at(others_, size->name, std::to_string(number));
  }

  /// One is factor * other + term.
  void check_related(std::string one, std::string other, int64_t factor, int64_t term) {
    const NamedSize *first = named(one), *second = named(other);
    if (!first || !second || first->name == second->name) return;
    if (factor == 1 && order_of(first->name) < order_of(second->name)) {
      std::swap(first, second);
      std::swap(one, other);
      term = -term;
    }
    const std::string &name = first->name, &root = second->name;
    if (factor == 1 && term == 0) {
      violate(name, "The values of " + name + " = " + one + " and " + root + " = " + other + " must always be equal.");
      at(others_, name, std::string()) = root;
      return;
    }
    std::string expression = factor == 1 ? root : std::to_string(factor) + "*" + root;
    if (term != 0) expression += (term > 0 ? " + " : " - ") + std::to_string(std::abs(term));
    violate(name, "The values of " + name + " = " + one + " must always be related to the values of " + root + " = " +
                      other + " by " + name + " = " + expression + ".");
    at(others_, name, std::string()) = expression;
  }

  void check_zero(const shapes::Relation& relation, const SizeAssumptions& assumed) {
    const Expr difference = relation.difference;
    if (difference.kind() == ExprKind::Mod) {
      const Expr dividend = difference.operands()[0], divisor = difference.operands()[1];
      if (dividend.kind() != ExprKind::Symbol || !divisor.is_constant()) return;
      const std::string place = place_of(dividend.id(), assumed);
      const NamedSize* size = named(place);
      if (!size) return;
      violate_range(size->name, place, guards::in_places(shapes::condition(relation), assumed));
      at(others_, size->name, std::to_string(divisor.number()) + "*_" + size->name);
      return;
    }
    if (difference.kind() == ExprKind::Sum && difference.operands().size() == 1) {
      const Expr operand = difference.operands().front();
      const int64_t factor = difference.coefficients().front();
      if (operand.kind() == ExprKind::Symbol)
        check_constant(place_of(operand.id(), assumed), -difference.number() / factor);
    }
    if (difference.kind() != ExprKind::Sum || difference.operands().size() != 2) return;
    for (size_t i = 0; i < 2; ++i) {
      const Expr left = difference.operands()[i];
      const int64_t sign = difference.coefficients()[i];
      if (left.kind() != ExprKind::Symbol || (sign != 1 && sign != -1)) continue;
      const auto right = linear(left - difference * Expr(sign));
      if (right)
        return check_related(place_of(left.id(), assumed), place_of(right->symbol, assumed), right->factor,
                             right->term);
    }
  }

  std::map<std::string, const NamedSize*> by_place_;
  std::vector<std::string> order_, violated_, problems_;
  ByName<Bounds> bounds_;
  ByName<std::string> others_;  // what a name is to be
};

}  // namespace

std::string violated_names(const std::vector<const SizeAssumptions*>& assumed, const std::vector<NamedSize>& sizes) {
  NameCheck check(sizes);
  for (const SizeAssumptions* each : assumed) check.check(*each);
  return check.message();
}

}  // namespace magneto::compiler
