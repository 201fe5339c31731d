// The text form of expressions, both ways.
#include <charconv>
#include <stdexcept>

#include "shapes/expr.h"

namespace magneto::shapes {
namespace {

void print_expr(std::string& out, Expr expr);

/// An operand of a product, a division or a modulo.
void print_factor(std::string& out, Expr expr) {
  const bool atom = expr.operands().empty() || expr.kind() == ExprKind::Min || expr.kind() == ExprKind::Max;
  if (!atom || (expr.is_constant() && expr.number() < 0)) out += '(';
  print_expr(out, expr);
  if (!atom || (expr.is_constant() && expr.number() < 0)) out += ')';
}

void print_term(std::string& out, int64_t coefficient, Expr term) {
  if (coefficient == -1) {
    out += '-';
  } else if (coefficient != 1) {
    out += std::to_string(coefficient) + "*";
  }
  if (coefficient != 1 && (term.kind() == ExprKind::FloorDiv || term.kind() == ExprKind::Mod)) {
    print_factor(out, term);
  } else {
    print_expr(out, term);
  }
}

void print_call(std::string& out, const char* name, Expr expr) {
  out += name;
  print_expr(out, expr.operands()[0]);
  out += ", ";
  print_expr(out, expr.operands()[1]);
  out += ')';
}

void print_expr(std::string& out, Expr expr) {
  switch (expr.kind()) {
    case ExprKind::Constant:
      out += std::to_string(expr.number());
      return;
    case ExprKind::Symbol:
      out += expr.id() < 0 ? "u" + std::to_string(-1 - expr.id()) : "s" + std::to_string(expr.id());
      return;
    case ExprKind::Variable:
      out += std::string("i") + std::to_string(expr.id());
      return;
    case ExprKind::Value:
      out += std::string("%") + std::to_string(expr.id());
      return;
    case ExprKind::Sum: {
      for (size_t i = 0; i < expr.operands().size(); ++i) {
        int64_t coefficient = expr.coefficients()[i];
        if (i && coefficient < 0 && coefficient != INT64_MIN) {
          out += " - ";
          coefficient = -coefficient;
        } else if (i) {
          out += " + ";
        }
        print_term(out, coefficient, expr.operands()[i]);
      }
      const int64_t constant = expr.number();
      if (constant < 0 && constant != INT64_MIN) {
        out += " - " + std::to_string(-constant);
      } else if (constant) {
        out += " + " + std::to_string(constant);
      }
      return;
    }
    case ExprKind::Product:
      for (size_t i = 0; i < expr.operands().size(); ++i) {
        if (i) out += '*';
        print_factor(out, expr.operands()[i]);
      }
      return;
    case ExprKind::FloorDiv:
    case ExprKind::Mod:
      print_factor(out, expr.operands()[0]);
      out += expr.kind() == ExprKind::FloorDiv ? "//" : "%";
      print_factor(out, expr.operands()[1]);
      return;
    case ExprKind::Min:
      return print_call(out, "min(", expr);
    case ExprKind::Max:
      return print_call(out, "max(", expr);
  }
}

constexpr int kDeepest = 200;  // parentheses; an expression that a program made has a few

class Parser {
 public:
  Parser(std::string_view text, size_t& position) : text_(text), position_(position) {}

  Expr sum() {
    if (++depth_ > kDeepest) fail("an expression that is too deep");
    Expr result = product();
    while (true) {
      if (take('+')) {
        result = result + product();
      } else if (take('-')) {
        result = result - product();
      } else {
        --depth_;
        return result;
      }
    }
  }

 private:
  [[noreturn]] void fail(const std::string& cause) const {
    throw std::invalid_argument("column " + std::to_string(position_ + 1) + ": " + cause);
  }

  Expr product() {
    Expr result = factor();
    while (true) {
      if (take('*')) {
        result = result * factor();
      } else if (text_.substr(std::min(skipped(), text_.size())).starts_with("//")) {
        position_ = skipped() + 2;
        result = floor_div(result, factor());
      } else if (take('%')) {
        result = mod(result, factor());
      } else {
        return result;
      }
    }
  }

  Expr factor() {
    if (take('(')) {
      const Expr inner = sum();
      if (!take(')')) fail("expected ')'");
      return inner;
    }
    position_ = skipped();
    const std::string_view rest = text_.substr(std::min(position_, text_.size()));
    const bool negative_number = rest.size() > 1 && rest[0] == '-' && rest[1] >= '0' && rest[1] <= '9';
    if (!negative_number && take('-')) return -1 * factor();
    if (position_ >= text_.size()) fail("expected an expression");
    if (text_.substr(position_).starts_with("min(")) return call(4, min);
    if (text_.substr(position_).starts_with("max(")) return call(4, max);
    const char first = text_[position_];
    if (first == 's') return ++position_, Expr::symbol(id());
    if (first == 'u') return ++position_, Expr::symbol(-1 - id());
    if (first == 'i') return ++position_, Expr::variable(id());
    if (first == '%') return ++position_, Expr::value(id());
    return number();
  }

  Expr call(size_t length, Expr (*function)(Expr, Expr)) {
    position_ += length;
    const Expr a = sum();
    if (!take(',')) fail("expected ','");
    const Expr b = sum();
    if (!take(')')) fail("expected ')'");
    return function(a, b);
  }

  int64_t number() {
    int64_t value = 0;
    const char* begin = text_.data() + position_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc{}) fail("expected a number, a symbol or a variable");
    position_ += static_cast<size_t>(end - begin);
    return value;
  }

  int32_t id() {
    const int64_t value = number();
    if (value < 0 || value > INT32_MAX) fail("number out of range");
    return static_cast<int32_t>(value);
  }

  size_t skipped() const {
    size_t next = position_;
    while (next < text_.size() && text_[next] == ' ') ++next;
    return next;
  }

  bool take(char token) {
    const size_t next = skipped();
    if (next >= text_.size() || text_[next] != token) return false;
    position_ = next + 1;
    return true;
  }

  std::string_view text_;
  size_t& position_;
  int depth_ = 0;
};

}  // namespace

std::string text(Expr expr) {
  std::string out;
  print_expr(out, expr);
  return out;
}

Expr parse_expr(std::string_view text, size_t& position) { return Parser(text, position).sum(); }

}  // namespace magneto::shapes
