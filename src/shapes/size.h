// A size as the compiler works with it: a number, or an expression of symbols together with its number in the run that
// was captured.
//
// Equality is of what is known: `a == b` holds if both are the same expression, and `a != b` says no more than that
// this is not known. So code asks for what it needs to know, and works for all sizes where it does not.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "shapes/expr.h"

namespace magneto::shapes {

class Size {
 public:
  Size() = default;
  Size(int64_t number) : hint_(number) {}  // NOLINT: numbers are sizes
  Size(int number) : hint_(number) {}      // NOLINT
  /// `hint`: the expression's number in the run that was captured.
  Size(Expr expr, int64_t hint) : hint_(hint) {
    if (expr.is_constant()) {
      hint_ = expr.number();
    } else {
      expr_ = expr;
    }
  }

  bool is_static() const { return !expr_; }
  /// Of a static size. Throws UnknownSize.
  int64_t number() const;
  /// For choices that change no result.
  int64_t hint() const { return hint_; }
  Expr expr() const { return expr_ ? *expr_ : Expr(hint_); }
  const void* identity() const { return expr_ ? expr_->identity() : nullptr; }

  friend bool operator==(const Size& a, const Size& b) {
    return a.identity() == b.identity() && (!a.is_static() || a.hint_ == b.hint_);
  }

 private:
  int64_t hint_ = 0;
  std::optional<Expr> expr_;
};

using Sizes = std::vector<Size>;

/// Something has to be known of a size that depends on the run.
struct UnknownSize : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Size operator+(const Size& a, const Size& b);
Size operator-(const Size& a, const Size& b);
Size operator*(const Size& a, const Size& b);
inline Size& operator+=(Size& a, const Size& b) { return a = a + b; }
inline Size& operator*=(Size& a, const Size& b) { return a = a * b; }
/// a divided by b, if that is known to leave no rest.
std::optional<Size> exact_quotient(const Size& a, const Size& b);
/// All of them static: their numbers. Throws UnknownSize.
std::vector<int64_t> numbers(const Sizes& sizes);
bool all_static(const Sizes& sizes);
std::vector<int64_t> hints(const Sizes& sizes);
/// `s0`, `12`.
std::string text(const Size& size);

}  // namespace magneto::shapes
