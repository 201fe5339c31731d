#include "shapes/knowledge.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

namespace magneto::shapes {

// -- bounds ----------------------------------------------------------------------------------------------------------

namespace {

/// Wide enough that bounds never wrap; anything outside 64 bits means "unknown".
using Wide = __int128;

Range narrowed(Wide low, Wide high) {
  if (low < INT64_MIN || high > INT64_MAX) return {};
  return {static_cast<int64_t>(low), static_cast<int64_t>(high)};
}

bool unknown(Range range) { return range.low == INT64_MIN || range.high == INT64_MAX; }

Range times(Range a, Range b) {
  if (a.low >= 0 && b.low >= 0) {
    const Wide low = Wide{a.low} * b.low, high = Wide{a.high} * b.high;
    const bool bounded = !unknown(a) && !unknown(b) && high <= INT64_MAX;
    return {low > INT64_MAX ? 0 : static_cast<int64_t>(low), bounded ? static_cast<int64_t>(high) : INT64_MAX};
  }
  if (unknown(a) || unknown(b)) return {};
  const Wide corners[] = {Wide{a.low} * b.low, Wide{a.low} * b.high, Wide{a.high} * b.low, Wide{a.high} * b.high};
  return narrowed(*std::min_element(corners, corners + 4), *std::max_element(corners, corners + 4));
}

Range plus(Range a, Range b) {
  const bool low = a.low != INT64_MIN && b.low != INT64_MIN;
  const bool high = a.high != INT64_MAX && b.high != INT64_MAX;
  const Wide least = Wide{a.low} + b.low, most = Wide{a.high} + b.high;
  return {low && least >= INT64_MIN && least <= INT64_MAX ? static_cast<int64_t>(least) : INT64_MIN,
          high && most <= INT64_MAX && most >= INT64_MIN ? static_cast<int64_t>(most) : INT64_MAX};
}

}  // namespace

Range Knowledge::range(Expr expr) {
  if (!remembers_ || expr.operands().empty()) return find_range(expr);
  const auto known = ranges_.find(expr.identity());
  if (known != ranges_.end()) return known->second;
  const Range result = find_range(expr);
  ranges_.emplace(expr.identity(), result);
  return result;
}

Range Knowledge::find_range(Expr expr) {
  const auto part = [&](size_t i) { return range(expr.operands()[i]); };
  switch (expr.kind()) {
    case ExprKind::Constant:
      return {expr.number(), expr.number()};
    case ExprKind::Symbol:
    case ExprKind::Variable:
    case ExprKind::Value:
      return leaf_range(expr);
    case ExprKind::Sum: {
      Range sum{expr.number(), expr.number()};
      for (size_t i = 0; i < expr.operands().size(); ++i) {
        const int64_t scale = expr.coefficients()[i];
        const Range term = part(i);
        Range scaled;
        const bool up = scale > 0;
        const int64_t from = up ? term.low : term.high, to = up ? term.high : term.low;
        if (from != INT64_MIN && from != INT64_MAX) scaled.low = narrowed(Wide{from} * scale, Wide{from} * scale).low;
        if (to != INT64_MIN && to != INT64_MAX) scaled.high = narrowed(Wide{to} * scale, Wide{to} * scale).high;
        sum = plus(sum, scaled);
      }
      return sum;
    }
    case ExprKind::Product: {
      Range result{1, 1};
      for (size_t i = 0; i < expr.operands().size(); ++i) result = times(result, part(i));
      return result;
    }
    case ExprKind::FloorDiv: {
      const Range a = part(0), b = part(1);
      if (b.low < 1) return {};
      Range result;
      if (a.low != INT64_MIN)
        result.low = a.low >= 0 ? (b.high == INT64_MAX ? 0 : a.low / b.high) : floor_div(a.low, b.low);
      if (a.high != INT64_MAX)
        result.high = a.high >= 0 ? a.high / b.low : (b.high == INT64_MAX ? -1 : floor_div(a.high, b.high));
      return result;
    }
    case ExprKind::Mod: {
      const Range a = part(0), b = part(1);
      if (b.low < 1) return {};
      if (a.low >= 0 && a.high < b.low) return a;
      return {0, b.high == INT64_MAX ? (a.low >= 0 ? a.high : INT64_MAX) : b.high - 1};
    }
    case ExprKind::Min: {
      const Range a = part(0), b = part(1);
      return {std::min(a.low, b.low), std::min(a.high, b.high)};
    }
    case ExprKind::Max: {
      const Range a = part(0), b = part(1);
      return {std::max(a.low, b.low), std::max(a.high, b.high)};
    }
  }
  return {};
}

// -- exact quotients -------------------------------------------------------------------------------------------------

namespace {

struct Term {
  int64_t coefficient;
  std::vector<Expr> factors;
};

/// The terms of a sum without a constant; nothing for others.
std::optional<std::vector<Term>> terms_of(Expr expr) {
  const auto factors = [](Expr term) {
    return term.kind() == ExprKind::Product ? term.operands() : std::vector<Expr>{term};
  };
  std::vector<Term> terms;
  if (expr.is_constant()) return std::nullopt;
  if (expr.kind() != ExprKind::Sum) return std::vector<Term>{{1, factors(expr)}};
  if (expr.number() != 0) return std::nullopt;
  for (size_t i = 0; i < expr.operands().size(); ++i) {
    terms.push_back({expr.coefficients()[i], factors(expr.operands()[i])});
  }
  return terms;
}

}  // namespace

std::optional<Expr> exact_quotient(Expr a, Expr b) {
  const auto dividends = terms_of(a), divisor = terms_of(b);
  if (!dividends || !divisor || divisor->size() != 1) return std::nullopt;
  Expr quotient = 0;
  for (Term term : *dividends) {
    if (term.coefficient % divisor->front().coefficient != 0) return std::nullopt;
    for (const Expr factor : divisor->front().factors) {
      const auto found = std::find(term.factors.begin(), term.factors.end(), factor);
      if (found == term.factors.end()) return std::nullopt;
      term.factors.erase(found);
    }
    Expr part = term.coefficient / divisor->front().coefficient;
    for (const Expr factor : term.factors) part *= factor;
    quotient += part;
  }
  return quotient;
}

Split long_division(Expr a, Expr divisor) {
  if (divisor.is_constant()) return divisor.number() > 0 ? split(a, divisor.number()) : Split{0, a};
  // By the divisor's first term of the highest degree, as long as some term has it as a factor.
  const auto parts = terms_of(divisor.kind() == ExprKind::Sum ? divisor - divisor.number() : divisor);
  const Term leading = *std::ranges::max_element(
      *parts, [](const Term& x, const Term& y) { return x.factors.size() < y.factors.size(); });
  Expr lead = leading.coefficient;
  for (const Expr factor : leading.factors) lead *= factor;
  Split result{0, a};
  constexpr int kMostTurns = 32;
  for (int turn = 0; turn < kMostTurns; ++turn) {
    if (result.rest.is_constant()) return result;
    const Expr rest = result.rest.kind() == ExprKind::Sum ? result.rest - result.rest.number() : result.rest;
    std::optional<Expr> quotient;
    const auto terms = terms_of(rest);
    for (const Term& term : *terms) {
      Expr whole = term.coefficient;
      for (const Expr factor : term.factors) whole *= factor;
      quotient = exact_quotient(whole, lead);
      if (quotient) break;
    }
    if (!quotient) return result;
    result.quotient += *quotient;
    result.rest = result.rest - *quotient * divisor;
  }
  return {0, a};
}

/// c*(x//d)*y is (c/d)*x*y where d is known to divide x.
Expr Knowledge::without_exact_divisions(Expr expr) {
  const auto terms = terms_of(expr.kind() == ExprKind::Sum ? expr - expr.number() : expr);
  if (!terms) return expr;
  for (const Term& term : *terms) {
    for (const Expr division : term.factors) {
      if (division.kind() != ExprKind::FloorDiv) continue;
      const Expr dividend = division.operands()[0], divisor = division.operands()[1];
      Expr rest = term.coefficient;
      bool found = false;
      for (const Expr factor : term.factors) {
        if (!found && factor == division) {
          found = true;
        } else {
          rest *= factor;
        }
      }
      std::optional<Expr> quotient;
      if (!divisor.is_constant()) {
        quotient = exact_quotient(rest, divisor);
      } else if (divisor.number() > 0 && term.coefficient % divisor.number() == 0) {
        quotient = floor_div(rest, divisor);
      }
      if (quotient && divides(divisor, dividend)) return expr - rest * division + *quotient * dividend;
    }
  }
  return expr;
}

/// y*(x%n) + y*n*(x//n) is y*x, and y*(x%n) + y*n*((x//n)%m) is y*(x%(n*m)): positions that were taken apart.
Expr Knowledge::with_joined_digits(Expr sum) {
  if (sum.kind() != ExprKind::Sum) return sum;
  const auto count = [](Expr expr) {
    return expr.kind() == ExprKind::Sum ? expr.operands().size() : size_t{!expr.is_constant()};
  };
  for (size_t i = 0; i < sum.operands().size(); ++i) {
    const Expr term = sum.operands()[i];
    const auto factors = term.kind() == ExprKind::Product ? term.operands() : std::vector<Expr>{term};
    for (const Expr low : factors) {
      if (low.kind() != ExprKind::Mod) continue;
      const Expr x = low.operands()[0], n = low.operands()[1];
      const auto scale = term == low ? Expr(1) : exact_quotient(term, low);
      if (!scale || range(n).low < 1) continue;
      const Expr y = *scale * sum.coefficients()[i], high = floor_div(x, n);
      const Expr others = sum - y * low;
      if (others.is_constant()) continue;
      const auto is_in = [&](Expr part) { return count(others - part) + count(part) == count(others); };
      if (is_in(y * n * high)) return others - y * n * high + y * x;
      for (const Expr other : others.kind() == ExprKind::Sum ? others.operands() : std::vector<Expr>{others}) {
        for (const Expr digit : other.kind() == ExprKind::Product ? other.operands() : std::vector<Expr>{other}) {
          if (digit.kind() != ExprKind::Mod || digit.operands()[0] != high || !is_in(y * n * digit)) continue;
          if (range(digit.operands()[1]).low < 1) continue;
          return others - y * n * digit + y * mod(x, n * digit.operands()[1]);
        }
      }
    }
  }
  return sum;
}

// -- simplification --------------------------------------------------------------------------------------------------

Expr Knowledge::simplified(Expr expr) {
  if (expr.is_constant()) return expr;
  if (!remembers_) return simplify(expr);
  const auto known = simplified_.find(expr.identity());
  if (known != simplified_.end()) return known->second;
  const Expr result = simplify(expr);
  simplified_.emplace(expr.identity(), result);
  return result;
}

Expr Knowledge::simplify(Expr expr) {
  if (expr.operands().empty()) {
    const std::optional<Expr> value = leaf_value(expr);
    return value ? simplified(*value) : expr;
  }
  if (expr.is_polynomial() && !any_leaf(expr, [&](Expr leaf) { return leaf_value(leaf).has_value(); })) return expr;
  const Expr inner = rebuild(expr, [&](Expr part) { return simplified(part); });
  if (inner.kind() == ExprKind::Sum || inner.kind() == ExprKind::Product) {
    Expr less = without_exact_divisions(inner);
    if (less == inner) less = with_joined_digits(inner);
    return less == inner ? inner : simplified(less);
  }
  return inner.operands().size() == 2 ? simplify_division(inner) : inner;
}

/// Of a division, modulo, min or max, whose parts are simplified.
Expr Knowledge::simplify_division(Expr inner) {
  const Expr a = inner.operands()[0], b = inner.operands()[1];
  const Range x = range(a), y = range(b);
  switch (inner.kind()) {
    case ExprKind::FloorDiv:
    case ExprKind::Mod: {
      const bool divides = inner.kind() == ExprKind::FloorDiv;
      if (is_rest(a, b)) return divides ? Expr(0) : a;
      if (y.low > 0) {
        if (const auto quotient = exact_quotient(a, b)) return divides ? *quotient : Expr(0);
        // (p*a)//(p*b) is a//b, and the rest p times that of a and b.
        if (const auto divisor = terms_of(b); divisor && divisor->size() == 1) {
          for (const Expr factor : divisor->front().factors) {
            if (range(factor).low < 1) continue;
            const auto less = exact_quotient(a, factor);
            if (!less) continue;
            const Expr rest = exact_quotient(b, factor).value();
            return divides ? simplified(floor_div(*less, rest)) : simplified(factor * mod(*less, rest));
          }
        }
      }
      if (!b.is_constant()) return divided_by_symbols(inner).value_or(inner);
      if (b.number() <= 1) return inner;
      // (c*x + rest) with 0 <= rest < c: split off what c divides, then look at the coarsest common factor of the rest.
      if (a.kind() != ExprKind::Sum) return inner;
      // Terms whose coefficient shares a factor g with the divisor: (g*x + rest)//(g*n) == x//n when 0 <= rest < g.
      for (size_t i = 0; i < a.coefficients().size(); ++i) {
        const int64_t factor = std::abs(a.coefficients()[i]);
        if (factor <= 1 || b.number() % factor != 0) continue;
        const Split parts = split(a, factor);
        const Range rest = range(parts.rest);
        if (rest.low < 0 || rest.high >= factor) continue;
        if (divides) return simplified(floor_div(parts.quotient, b.number() / factor));
        return factor * simplified(mod(parts.quotient, b.number() / factor)) + parts.rest;
      }
      return inner;
    }
    case ExprKind::Min:
      if (x.high <= y.low) return a;
      if (y.high <= x.low) return b;
      return inner;
    case ExprKind::Max:
      if (x.high <= y.low) return b;
      if (y.high <= x.low) return a;
      return inner;
    default:
      return inner;
  }
}

/// A division or modulo by what is no number: what the divisor, or a factor of it, divides is split off.
std::optional<Expr> Knowledge::divided_by_symbols(Expr division) {
  const Expr a = division.operands()[0], b = division.operands()[1];
  const bool divides = division.kind() == ExprKind::FloorDiv;
  if (range(b).low < 1) return std::nullopt;
  if (const Split parts = long_division(a, b); !parts.quotient.is_constant(0)) {
    return divides ? parts.quotient + simplified(floor_div(parts.rest, b)) : simplified(mod(parts.rest, b));
  }
  const auto divisor = terms_of(b);
  if (!divisor || divisor->size() != 1) return std::nullopt;
  std::vector<Expr> factors = divisor->front().factors;
  if (divisor->front().coefficient > 1) factors.push_back(divisor->front().coefficient);
  for (const Expr factor : factors) {
    if (range(factor).low < 1 || factor == b) continue;
    // (g*x + rest)//(g*n) is x//n when 0 <= rest < g.
    const Split parts = long_division(a, factor);
    if (parts.quotient.is_constant(0) || !is_rest(parts.rest, factor)) continue;
    const Expr rest = long_division(b, factor).quotient;
    if (divides) return simplified(floor_div(parts.quotient, rest));
    return factor * simplified(mod(parts.quotient, rest)) + parts.rest;
  }
  return std::nullopt;
}

bool Knowledge::is_rest(Expr a, Expr b) {
  const Range x = range(a), y = range(b);
  return x.low >= 0 && y.low > 0 && x.high < y.low;
}

std::optional<Expr> Knowledge::leaf_value(Expr leaf) const {
  const Range range = leaf_range(leaf);
  return range.low == range.high ? std::optional<Expr>(range.low) : std::nullopt;
}

bool Knowledge::divides(Expr, Expr) const { return false; }

void Knowledge::remember() { remembers_ = true; }

void Knowledge::forget() {
  ranges_.clear();
  simplified_.clear();
}

// -- of ranges alone -------------------------------------------------------------------------------------------------

namespace {

class Ranges final : public Knowledge {
 public:
  explicit Ranges(const std::function<Range(Expr)>& leaf) : leaf_(leaf) {}

 protected:
  Range leaf_range(Expr leaf) const override { return leaf_(leaf); }

 private:
  const std::function<Range(Expr)>& leaf_;
};

}  // namespace

Range range_of(Expr expr, const std::function<Range(Expr)>& leaf) { return Ranges(leaf).range(expr); }
Expr simplify(Expr expr, const std::function<Range(Expr)>& leaf) { return Ranges(leaf).simplified(expr); }

}  // namespace magneto::shapes
