// Integer expressions: extents, strides and indices. A static number is the special case that is used most.
//
// An expression is kept in one normal form, a sum of products with collected terms, so that equal polynomials are the
// same object: `==` compares pointers, and `2*(i0 + 3) == 2*i0 + 6` holds. Floor division, modulo, min and max are
// opaque factors of that form, simplified where it holds for all integers. The order of terms depends on nothing but
// the terms, so that the text of an expression is the same in each process.
//
// Nodes are shared and never freed (an expression is a pointer); making them is thread-safe. Arithmetic wraps at 64
// bits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace magneto::shapes {

enum class ExprKind : uint8_t {
  Constant,
  Symbol,    // s0: a size known when the program runs; u0, with the id -1: one that only its data says
  Variable,  // i0: a loop variable; its owner says which
  Value,     // %0: an integer that a program computed
  Sum,       // constant + terms
  Product,   // of at least two factors, none of them a constant or a sum
  FloorDiv,  // Python's //
  Mod,       // Python's %
  Min,
  Max,
};

struct ExprNode;

class Expr {
 public:
  Expr() : Expr(int64_t{0}) {}
  Expr(int64_t number);  // NOLINT: numbers are expressions
  Expr(int number) : Expr(static_cast<int64_t>(number)) {}
  static Expr symbol(int32_t id);
  static Expr variable(int32_t id);
  static Expr value(int32_t id);

  ExprKind kind() const;
  bool is_constant() const { return kind() == ExprKind::Constant; }
  bool is_constant(int64_t number) const { return is_constant() && this->number() == number; }
  /// The value of a constant; the constant term of a sum.
  int64_t number() const;
  /// Which symbol, variable or value a leaf is.
  int32_t id() const;
  /// The terms of a sum without their coefficients, the factors of a product, the two operands of the others.
  const std::vector<Expr>& operands() const;
  /// The coefficients of a sum's terms.
  const std::vector<int64_t>& coefficients() const;
  /// No division, modulo, min or max is in it.
  bool is_polynomial() const;

  /// Where a table by symbols has that one: s0, u0, s1, u1...
  static size_t place(int32_t symbol) {
    return symbol < 0 ? 2 * static_cast<size_t>(-1 - symbol) + 1 : 2 * static_cast<size_t>(symbol);
  }

  friend bool operator==(Expr a, Expr b) { return a.node_ == b.node_; }
  const void* identity() const { return node_; }

 private:
  explicit Expr(const ExprNode* node) : node_(node) {}
  friend struct ExprTable;
  const ExprNode* node_;
};

Expr operator+(Expr a, Expr b);
Expr operator-(Expr a, Expr b);
Expr operator*(Expr a, Expr b);
inline Expr& operator+=(Expr& a, Expr b) { return a = a + b; }
inline Expr& operator*=(Expr& a, Expr b) { return a = a * b; }
Expr floor_div(Expr a, Expr b);
Expr mod(Expr a, Expr b);
Expr min(Expr a, Expr b);
Expr max(Expr a, Expr b);
/// a divided by b, rounded up.
Expr ceil_div(Expr a, Expr b);

/// Python's division of numbers; by zero it gives zero, so that evaluating an expression never faults.
int64_t floor_div(int64_t a, int64_t b);
int64_t mod(int64_t a, int64_t b);

/// The number that `leaf` gives for each symbol, variable and value put in.
int64_t evaluate(Expr expr, const std::function<int64_t(Expr leaf)>& leaf);
/// Leaves replaced where `replacement` gives something.
Expr substitute(Expr expr, const std::function<std::optional<Expr>(Expr leaf)>& replacement);
/// True if `test` holds for some leaf.
bool any_leaf(Expr expr, const std::function<bool(Expr leaf)>& test);
bool depends_on(Expr expr, Expr leaf);

/// expr == coefficient*leaf + rest, with no `leaf` in either; nothing if the expression is not linear in it.
struct Linear {
  Expr coefficient, rest;
};
std::optional<Linear> linear_in(Expr expr, Expr leaf);

/// What is known of a leaf: low <= leaf <= high.
struct Range {
  int64_t low = INT64_MIN, high = INT64_MAX;
};
Range range_of(Expr expr, const std::function<Range(Expr leaf)>& leaf);
/// a divided by b, where b is one term that divides each term of a, and a has no constant term.
std::optional<Expr> exact_quotient(Expr a, Expr b);
/// Divisions, modulos, min and max that the ranges decide are gone: (8*i0 + i1)//8 is i0 when 0 <= i1 < 8.
Expr simplify(Expr expr, const std::function<Range(Expr leaf)>& leaf);

/// `64*i0 + s0*i1 + i2//4 + max(s0, 1) + 3`. Reads back.
std::string text(Expr expr);
/// Reads the longest expression at `position` and steps behind it. Errors are std::invalid_argument.
Expr parse_expr(std::string_view text, size_t& position);

}  // namespace magneto::shapes
