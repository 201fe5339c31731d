#include "shapes/expr.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "shapes/knowledge.h"

namespace magneto::shapes {

struct ExprNode {
  ExprKind kind;
  int64_t number = 0;  // constant, constant term, or a leaf's id
  std::vector<Expr> operands;
  std::vector<int64_t> coefficients;
  size_t hash = 0;
  bool polynomial = true;
};

namespace {

int64_t wrap_add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
int64_t wrap_mul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

size_t mix(size_t hash, size_t more) { return (hash ^ more) * 0x9E3779B97F4A7C15ull + (hash >> 29); }

}  // namespace

struct ExprTable {
  static Expr intern(ExprNode node) {
    size_t hash = mix(static_cast<size_t>(node.kind), static_cast<size_t>(node.number));
    for (const Expr operand : node.operands) hash = mix(hash, operand.node_->hash);
    for (const int64_t coefficient : node.coefficients) hash = mix(hash, static_cast<size_t>(coefficient));
    node.hash = hash;
    node.polynomial =
        node.kind < ExprKind::FloorDiv &&
        std::all_of(node.operands.begin(), node.operands.end(), [](Expr o) { return o.node_->polynomial; });
    static ExprTable& table = *new ExprTable;  // outlives all statics that hold expressions
    std::lock_guard lock(table.mutex_);
    auto [it, end] = table.nodes_.equal_range(hash);
    for (; it != end; ++it) {
      const ExprNode& other = *it->second;
      if (other.kind == node.kind && other.number == node.number && other.operands == node.operands &&
          other.coefficients == node.coefficients) {
        return Expr(&other);
      }
    }
    const auto* kept = new ExprNode(std::move(node));
    table.nodes_.emplace(hash, kept);
    return Expr(kept);
  }
  static const ExprNode& node(Expr expr) { return *expr.node_; }

 private:
  std::mutex mutex_;
  std::unordered_multimap<size_t, const ExprNode*> nodes_;
};

namespace {

Expr leaf(ExprKind kind, int64_t id) {
  return ExprTable::intern({.kind = kind, .number = id, .operands = {}, .coefficients = {}});
}

/// An order that depends only on what the expressions say: leaves by id first, then by kind and parts.
int compare(Expr a, Expr b) {
  if (a == b) return 0;
  if (a.kind() != b.kind()) return a.kind() < b.kind() ? -1 : 1;
  const ExprNode& x = ExprTable::node(a);
  const ExprNode& y = ExprTable::node(b);
  for (size_t i = 0; i < std::min(x.operands.size(), y.operands.size()); ++i) {
    if (const int order = compare(x.operands[i], y.operands[i])) return order;
  }
  if (x.operands.size() != y.operands.size()) return x.operands.size() < y.operands.size() ? -1 : 1;
  if (x.coefficients != y.coefficients) return x.coefficients < y.coefficients ? -1 : 1;
  return x.number < y.number ? -1 : 1;
}

/// A polynomial while it is put together.
struct Terms {
  int64_t constant = 0;
  std::vector<std::pair<Expr, int64_t>> terms;  // product or atom, coefficient

  void add(Expr expr, int64_t scale) {
    if (expr.is_constant()) {
      constant = wrap_add(constant, wrap_mul(scale, expr.number()));
    } else if (expr.kind() == ExprKind::Sum) {
      constant = wrap_add(constant, wrap_mul(scale, expr.number()));
      for (size_t i = 0; i < expr.operands().size(); ++i) {
        terms.emplace_back(expr.operands()[i], wrap_mul(scale, expr.coefficients()[i]));
      }
    } else {
      terms.emplace_back(expr, scale);
    }
  }

  Expr take() {
    std::sort(terms.begin(), terms.end(), [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
    ExprNode sum{.kind = ExprKind::Sum, .number = constant, .operands = {}, .coefficients = {}};
    for (const auto& [term, coefficient] : terms) {
      if (!sum.operands.empty() && sum.operands.back() == term) {
        sum.coefficients.back() = wrap_add(sum.coefficients.back(), coefficient);
      } else {
        sum.operands.push_back(term);
        sum.coefficients.push_back(coefficient);
      }
      if (sum.coefficients.back() == 0) {
        sum.operands.pop_back();
        sum.coefficients.pop_back();
      }
    }
    if (sum.operands.empty()) return constant;
    if (constant == 0 && sum.operands.size() == 1 && sum.coefficients[0] == 1) return sum.operands[0];
    return ExprTable::intern(std::move(sum));
  }
};

void append_factors(std::vector<Expr>& factors, Expr expr) {
  if (expr.kind() == ExprKind::Product) {
    factors.insert(factors.end(), expr.operands().begin(), expr.operands().end());
  } else {
    factors.push_back(expr);
  }
}

/// The product of two expressions that are neither constants nor sums.
Expr product(Expr a, Expr b) {
  ExprNode node{.kind = ExprKind::Product, .operands = {}, .coefficients = {}};
  append_factors(node.operands, a);
  append_factors(node.operands, b);
  std::sort(node.operands.begin(), node.operands.end(), [](Expr x, Expr y) { return compare(x, y) < 0; });
  return ExprTable::intern(std::move(node));
}

Expr binary(ExprKind kind, Expr a, Expr b) {
  return ExprTable::intern({.kind = kind, .operands = {a, b}, .coefficients = {}});
}

}  // namespace

Split split(Expr a, int64_t divisor) {
  Terms quotient, rest;
  const auto put = [&](Expr term, int64_t coefficient) {
    if (coefficient % divisor == 0) {
      quotient.add(term, coefficient / divisor);
    } else {
      rest.add(term, coefficient);
    }
  };
  if (a.is_constant() || a.kind() == ExprKind::Sum) {
    const int64_t down = floor_div(a.number(), divisor);
    quotient.constant = down;
    rest.constant = a.number() - down * divisor;
    for (size_t i = 0; i < a.operands().size(); ++i) put(a.operands()[i], a.coefficients()[i]);
  } else {
    put(a, 1);
  }
  return {quotient.take(), rest.take()};
}

Expr::Expr(int64_t number) {
  // Most expressions are small constants: those are not looked up.
  static constexpr int64_t kLeast = -2, kMost = 512;
  static const ExprNode* const* const small = [] {
    auto* nodes = new std::array<const ExprNode*, kMost - kLeast + 1>;
    for (int64_t i = kLeast; i <= kMost; ++i) (*nodes)[i - kLeast] = leaf(ExprKind::Constant, i).node_;
    return nodes->data();
  }();
  node_ = number >= kLeast && number <= kMost ? small[number - kLeast] : leaf(ExprKind::Constant, number).node_;
}
Expr Expr::symbol(int32_t id) { return leaf(ExprKind::Symbol, id); }
Expr Expr::variable(int32_t id) { return leaf(ExprKind::Variable, id); }
Expr Expr::value(int32_t id) { return leaf(ExprKind::Value, id); }
ExprKind Expr::kind() const { return node_->kind; }
int64_t Expr::number() const { return node_->number; }
int32_t Expr::id() const { return static_cast<int32_t>(node_->number); }
const std::vector<Expr>& Expr::operands() const { return node_->operands; }
const std::vector<int64_t>& Expr::coefficients() const { return node_->coefficients; }
bool Expr::is_polynomial() const { return node_->polynomial; }

Expr operator+(Expr a, Expr b) {
  Terms terms;
  terms.add(a, 1);
  terms.add(b, 1);
  return terms.take();
}

Expr operator-(Expr a, Expr b) {
  Terms terms;
  terms.add(a, 1);
  terms.add(b, -1);
  return terms.take();
}

Expr operator*(Expr a, Expr b) {
  if (a.is_constant()) std::swap(a, b);
  if (b.is_constant()) {
    Terms terms;
    if (b.number() != 0) terms.add(a, b.number());
    return terms.take();
  }
  if (b.kind() == ExprKind::Sum) std::swap(a, b);
  if (a.kind() == ExprKind::Sum) {
    Terms terms;
    terms.add(b, a.number());
    if (a.number() == 0) terms = {};
    for (size_t i = 0; i < a.operands().size(); ++i) {
      Terms scaled;
      scaled.add(a.operands()[i] * b, a.coefficients()[i]);
      terms.add(scaled.take(), 1);
    }
    return terms.take();
  }
  return product(a, b);
}

int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return wrap_mul(a, -1);
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t mod(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Expr floor_div(Expr a, Expr b) {
  if (b.is_constant()) {
    if (b.number() == 1) return a;
    if (a.is_constant()) return floor_div(a.number(), b.number());
    if (b.number() > 1) {
      const Split parts = split(a, b.number());
      if (parts.rest.is_constant(0)) return parts.quotient;
      // (x//m)//n is x//(m*n) for positive m and n.
      if (parts.rest.kind() == ExprKind::FloorDiv && parts.rest.operands()[1].is_constant() &&
          parts.rest.operands()[1].number() > 0) {
        return parts.quotient + floor_div(parts.rest.operands()[0], parts.rest.operands()[1] * b);
      }
      if (!parts.quotient.is_constant(0)) return parts.quotient + floor_div(parts.rest, b);
    }
  }
  return binary(ExprKind::FloorDiv, a, b);
}

Expr mod(Expr a, Expr b) {
  if (b.is_constant()) {
    if (b.number() == 1) return 0;
    if (a.is_constant()) return mod(a.number(), b.number());
    if (b.number() > 1) {
      const Expr rest = split(a, b.number()).rest;
      if (rest.is_constant()) return rest;
      if (!(rest == a)) return mod(rest, b);
    }
  }
  return binary(ExprKind::Mod, a, b);
}

namespace {

Expr extremum(ExprKind kind, Expr a, Expr b) {
  if (a == b) return a;
  const bool least = kind == ExprKind::Min;
  const Expr difference = a - b;
  if (difference.is_constant()) return (difference.number() < 0) == least ? a : b;
  if (compare(a, b) > 0) std::swap(a, b);
  return binary(kind, a, b);
}

}  // namespace

Expr rebuild(Expr expr, const std::function<Expr(Expr)>& part) {
  switch (expr.kind()) {
    case ExprKind::Constant:
    case ExprKind::Symbol:
    case ExprKind::Variable:
    case ExprKind::Value:
      return part(expr);
    case ExprKind::Sum: {
      Terms terms;
      terms.constant = expr.number();
      for (size_t i = 0; i < expr.operands().size(); ++i) terms.add(part(expr.operands()[i]), expr.coefficients()[i]);
      return terms.take();
    }
    case ExprKind::Product: {
      Expr result = 1;
      for (const Expr factor : expr.operands()) result *= part(factor);
      return result;
    }
    case ExprKind::FloorDiv:
      return floor_div(part(expr.operands()[0]), part(expr.operands()[1]));
    case ExprKind::Mod:
      return mod(part(expr.operands()[0]), part(expr.operands()[1]));
    case ExprKind::Min:
      return min(part(expr.operands()[0]), part(expr.operands()[1]));
    case ExprKind::Max:
      return max(part(expr.operands()[0]), part(expr.operands()[1]));
  }
  return expr;
}

Expr min(Expr a, Expr b) { return extremum(ExprKind::Min, a, b); }
Expr max(Expr a, Expr b) { return extremum(ExprKind::Max, a, b); }
Expr ceil_div(Expr a, Expr b) { return floor_div(a + b - 1, b); }

int64_t evaluate(Expr expr, const std::function<int64_t(Expr)>& leaf) {
  const auto part = [&](size_t i) { return evaluate(expr.operands()[i], leaf); };
  switch (expr.kind()) {
    case ExprKind::Constant:
      return expr.number();
    case ExprKind::Symbol:
    case ExprKind::Variable:
    case ExprKind::Value:
      return leaf(expr);
    case ExprKind::Sum: {
      int64_t sum = expr.number();
      for (size_t i = 0; i < expr.operands().size(); ++i)
        sum = wrap_add(sum, wrap_mul(expr.coefficients()[i], part(i)));
      return sum;
    }
    case ExprKind::Product: {
      int64_t result = 1;
      for (size_t i = 0; i < expr.operands().size(); ++i) result = wrap_mul(result, part(i));
      return result;
    }
    case ExprKind::FloorDiv:
      return floor_div(part(0), part(1));
    case ExprKind::Mod:
      return mod(part(0), part(1));
    case ExprKind::Min:
      return std::min(part(0), part(1));
    case ExprKind::Max:
      return std::max(part(0), part(1));
  }
  return 0;
}

Expr substitute(Expr expr, const std::function<std::optional<Expr>(Expr)>& replacement) {
  return rebuild(expr, [&](Expr part) -> Expr {
    if (part.is_constant()) return part;
    if (part.operands().empty()) return replacement(part).value_or(part);
    return substitute(part, replacement);
  });
}

bool any_leaf(Expr expr, const std::function<bool(Expr)>& test) {
  if (expr.is_constant()) return false;
  if (expr.operands().empty()) return test(expr);
  return std::any_of(expr.operands().begin(), expr.operands().end(), [&](Expr part) { return any_leaf(part, test); });
}

bool depends_on(Expr expr, Expr wanted) {
  return any_leaf(expr, [&](Expr leaf) { return leaf == wanted; });
}

std::optional<Linear> linear_in(Expr expr, Expr leaf) {
  if (expr == leaf) return Linear{1, 0};
  if (!depends_on(expr, leaf)) return Linear{0, expr};
  if (expr.kind() == ExprKind::Sum) {
    Linear result{0, expr.number()};
    for (size_t i = 0; i < expr.operands().size(); ++i) {
      const auto part = linear_in(expr.operands()[i], leaf);
      if (!part) return std::nullopt;
      result.coefficient += expr.coefficients()[i] * part->coefficient;
      result.rest += expr.coefficients()[i] * part->rest;
    }
    return result;
  }
  if (expr.kind() == ExprKind::Product) {
    Expr coefficient = 1;
    int uses = 0;
    for (const Expr factor : expr.operands()) {
      if (factor == leaf) {
        ++uses;
      } else if (depends_on(factor, leaf)) {
        return std::nullopt;
      } else {
        coefficient *= factor;
      }
    }
    if (uses == 1) return Linear{coefficient, 0};
  }
  return std::nullopt;
}

}  // namespace magneto::shapes
