#include "shapes/relation.h"

#include <numeric>
#include <stdexcept>
#include <utility>

#include "shapes/condition.h"

namespace magneto::shapes {

namespace {

using Kind = Relation::Kind;

Expr constant_part(Expr expr) {
  return expr.is_constant() || expr.kind() == ExprKind::Sum ? Expr(expr.number()) : Expr(0);
}

Relation normal(Kind kind, Expr difference) {
  if (difference.is_constant()) return {kind, difference};
  int64_t factor = 1, first = 1;
  if (difference.kind() == ExprKind::Sum) {
    factor = 0;
    first = difference.coefficients()[0];
    for (const int64_t coefficient : difference.coefficients()) {
      if (coefficient == INT64_MIN) return {kind, difference};
      factor = std::gcd(factor, coefficient);
    }
  }
  if (factor > 1) {
    const Expr constant = constant_part(difference);
    if (kind != Kind::AtLeastZero && mod(constant.number(), factor) != 0) return {kind, 1};  // never zero
    difference = floor_div(difference, factor);  // of the constant, rounded down: n*x + c >= 0 is x + c//n >= 0
  }
  if (kind != Kind::AtLeastZero && first < 0) difference = 0 - difference;
  return {kind, difference};
}

}  // namespace

Relation equal(Expr a, Expr b) { return normal(Kind::Zero, a - b); }
Relation not_equal(Expr a, Expr b) { return normal(Kind::NonZero, a - b); }
Relation at_most(Expr a, Expr b) { return normal(Kind::AtLeastZero, b - a); }
Relation less(Expr a, Expr b) { return normal(Kind::AtLeastZero, b - a - 1); }
Relation with_difference(const Relation& relation, Expr difference) { return normal(relation.kind, difference); }

Relation operator!(const Relation& relation) {
  switch (relation.kind) {
    case Kind::Zero:
      return {Kind::NonZero, relation.difference};
    case Kind::NonZero:
      return {Kind::Zero, relation.difference};
    case Kind::AtLeastZero:
      break;
  }
  return normal(Kind::AtLeastZero, -1 - relation.difference);
}

bool holds(Kind kind, int64_t difference) {
  switch (kind) {
    case Kind::Zero:
      return difference == 0;
    case Kind::NonZero:
      return difference != 0;
    case Kind::AtLeastZero:
      break;
  }
  return difference >= 0;
}

std::optional<bool> holds(Kind kind, Range difference) {
  if (kind == Kind::AtLeastZero) {
    if (difference.low >= 0) return true;
    if (difference.high < 0) return false;
    return std::nullopt;
  }
  if (difference.low > 0 || difference.high < 0) return kind == Kind::NonZero;
  if (difference.low == 0 && difference.high == 0) return kind == Kind::Zero;
  return std::nullopt;
}

namespace {

/// What stands left and right of the sign: no term is subtracted, and a single constant stands on its own side.
std::pair<Expr, Expr> sides(Expr difference) {
  if (difference.kind() != ExprKind::Sum) return {difference, 0};
  Expr left = 0, right = 0;
  for (size_t i = 0; i < difference.operands().size(); ++i) {
    const int64_t coefficient = difference.coefficients()[i];
    (coefficient > 0 ? left : right) += (coefficient > 0 ? coefficient : -coefficient) * difference.operands()[i];
  }
  const int64_t constant = difference.number();
  const bool to_left = left == Expr(0) || (constant > 0 && !(right == Expr(0)));
  (to_left ? left : right) += to_left ? constant : -constant;
  return {left, right};
}

}  // namespace

namespace {

/// What stands left and right of the sign in a text; of an inequality, right and left.
std::pair<Expr, Expr> shown_sides(const Relation& relation) {
  auto [left, right] = sides(relation.difference);
  const bool alone = right.operands().empty() && !right.is_constant() && !left.operands().empty();
  if (alone || relation.kind == Kind::AtLeastZero) std::swap(left, right);  // Eq(s1, 2*s0)
  return {left, right};
}

}  // namespace

std::string text(const Relation& relation) {
  if (relation.kind == Kind::AtLeastZero) return condition(relation);
  const auto [left, right] = shown_sides(relation);
  return (relation.kind == Kind::Zero ? "Eq(" : "Ne(") + text(left) + ", " + text(right) + ")";
}

std::string condition(const Relation& relation) {
  static constexpr const char* signs[] = {" == ", " != ", " <= "};
  const auto [left, right] = shown_sides(relation);
  return text(left) + signs[static_cast<size_t>(relation.kind)] + text(right);
}

Relation parse_relation(std::string_view whole) {
  size_t position = 0;
  const auto skip = [&] {
    while (position < whole.size() && whole[position] == ' ') ++position;
  };
  skip();
  const Expr left = parse_expr(whole, position);
  skip();
  static constexpr std::string_view signs[] = {"==", "!=", "<=", ">=", "<", ">"};
  for (const std::string_view sign : signs) {
    if (!whole.substr(position).starts_with(sign)) continue;
    position += sign.size();
    skip();
    const Expr right = parse_expr(whole, position);
    skip();
    if (position != whole.size()) throw std::invalid_argument("text after the relation's end");
    if (sign == "==") return equal(left, right);
    if (sign == "!=") return not_equal(left, right);
    if (sign == "<=") return at_most(left, right);
    if (sign == ">=") return at_most(right, left);
    return sign == "<" ? less(left, right) : less(right, left);
  }
  throw std::invalid_argument("a relation needs one of == != <= < >= >");
}

}  // namespace magneto::shapes
