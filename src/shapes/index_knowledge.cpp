#include "shapes/index_knowledge.h"

#include <algorithm>

namespace magneto::shapes {

void SymbolFacts::add(int32_t symbol, Fact fact) {
  const size_t place = Expr::place(symbol);
  facts_.resize(std::max(facts_.size(), place + 1));
  facts_[place] = fact;
}

Range SymbolFacts::range(Expr symbol) const {
  const size_t place = Expr::place(symbol.id());
  return place < facts_.size() ? facts_[place].range : Range{};
}

Size SymbolFacts::size(Expr expr) const {
  if (expr.is_constant()) return expr.number();
  return {expr, evaluate(expr, [&](Expr leaf) -> int64_t { return facts_.at(Expr::place(leaf.id())).hint; })};
}

Range IndexKnowledge::leaf_range(Expr leaf) const {
  if (leaf.kind() == ExprKind::Symbol) return symbols_.range(leaf);
  if (leaf.kind() != ExprKind::Variable) return {};
  const Size* extent = extent_(leaf.id());
  if (!extent) return {};
  if (extent->is_static()) return {0, std::max<int64_t>(extent->hint() - 1, 0)};
  const Range range = range_of(extent->expr(), [&](Expr symbol) { return symbols_.range(symbol); });
  return {0, range.high == INT64_MAX ? INT64_MAX : std::max<int64_t>(range.high - 1, 0)};
}

bool IndexKnowledge::is_natural(Expr expr) {
  if (range(expr).low >= 0) return true;
  if (!any_leaf(expr, [](Expr leaf) { return leaf.kind() == ExprKind::Symbol; })) return false;
  // A variable that makes it smaller, at its greatest.
  std::vector<Expr> variables;
  any_leaf(expr, [&](Expr leaf) {
    const bool known = std::ranges::find(variables, leaf) != variables.end();
    if (leaf.kind() == ExprKind::Variable && !known) variables.push_back(leaf);
    return false;
  });
  for (const Expr variable : variables) {
    const Size* extent = extent_(variable.id());
    const auto linear = linear_in(expr, variable);
    if (!extent || !linear || range(linear->coefficient).high > 0) continue;
    expr = linear->coefficient * (extent->expr() - 1) + linear->rest;
  }
  if (range(expr).low >= 0) return true;
  // With each leaf written as its least value and what it has beyond that, no term may be negative.
  bool bounded = true;
  const Expr beyond = substitute(expr, [&](Expr leaf) -> std::optional<Expr> {
    const int64_t least = leaf_range(leaf).low;
    bounded = bounded && least != INT64_MIN;
    return bounded ? std::optional<Expr>(leaf + least) : std::nullopt;
  });
  if (!bounded || !beyond.is_polynomial()) return false;
  if (beyond.kind() != ExprKind::Sum) return beyond.is_constant() ? beyond.number() >= 0 : true;
  return beyond.number() >= 0 &&
         std::ranges::all_of(beyond.coefficients(), [](int64_t coefficient) { return coefficient >= 0; });
}

bool IndexKnowledge::is_rest(Expr a, Expr b) {
  if (Knowledge::is_rest(a, b)) return true;
  const auto is_symbol = [](Expr leaf) { return leaf.kind() == ExprKind::Symbol; };
  if (!any_leaf(a, is_symbol) && !any_leaf(b, is_symbol)) return false;
  return is_natural(a) && is_natural(b - a - 1);
}

bool has_variable(Expr expr) {
  return any_leaf(expr, [](Expr leaf) { return leaf.kind() == ExprKind::Variable; });
}

}  // namespace magneto::shapes
