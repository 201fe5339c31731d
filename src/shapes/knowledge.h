// What is known of the leaves of expressions, and expressions simplified by it.
#pragma once

#include <functional>
#include <optional>
#include <unordered_map>

#include "shapes/expr.h"

namespace magneto::shapes {

class Knowledge {
 public:
  virtual ~Knowledge() = default;

  /// The bounds of an expression.
  Range range(Expr expr);
  /// Divisions, modulos, min and max that the knowledge decides are gone: (8*i0 + i1)//8 is i0 when 0 <= i1 < 8.
  Expr simplified(Expr expr);

 protected:
  virtual Range leaf_range(Expr leaf) const = 0;
  /// What the leaf is replaced by; itself has to be simplified.
  virtual std::optional<Expr> leaf_value(Expr leaf) const;
  /// It is known that `divisor`, which is not zero, divides `dividend` without a rest: d*(x//d) is x.
  virtual bool divides(Expr divisor, Expr dividend) const;
  /// 0 <= a < b is known.
  virtual bool is_rest(Expr a, Expr b);

  /// From here on answers are remembered by expression, until `forget`: for expressions that grow out of each other.
  void remember();
  void forget();

 private:
  Range find_range(Expr expr);
  Expr simplify(Expr expr);
  Expr without_exact_divisions(Expr sum);
  Expr with_joined_digits(Expr sum);
  Expr simplify_division(Expr expr);
  std::optional<Expr> divided_by_symbols(Expr division);

  bool remembers_ = false;
  std::unordered_map<const void*, Range> ranges_;
  std::unordered_map<const void*, Expr> simplified_;
};

/// a == divisor*quotient + rest, where no term of rest has a coefficient that the divisor divides.
struct Split {
  Expr quotient, rest;
};
Split split(Expr a, int64_t divisor);
/// The same for any divisor but zero: s0*i0 + i0 + i1 is (s0 + 1)*i0 + i1.
Split long_division(Expr a, Expr divisor);
/// The expression put together anew of what `part` gives for each of its parts; of a leaf, what it gives for the leaf.
Expr rebuild(Expr expr, const std::function<Expr(Expr)>& part);

}  // namespace magneto::shapes
