#include "guards/sizes.h"

#include <algorithm>

#include "guards/failure.h"
#include "guards/tensor_check.h"
#include "shapes/condition.h"
#include "support/tensor_object.h"

namespace magneto::guards {

using shapes::Expr;
using shapes::ExprKind;

std::string SizePlace::name() const {
  switch (kind) {
    case Kind::Size:
      return source->name() + ".size()[" + std::to_string(dim) + "]";
    case Kind::Stride:
      return source->name() + ".stride()[" + std::to_string(dim) + "]";
    case Kind::Number:
      break;
  }
  return source->name();
}

std::string in_places(const std::string& text, const SizeAssumptions& assumptions) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const bool starts = text[i] == 's' && i + 1 < text.size() &&
                        std::isdigit(static_cast<unsigned char>(text[i + 1])) &&
                        (i == 0 || !std::isalnum(static_cast<unsigned char>(text[i - 1])));
    if (!starts) {
      result += text[i++];
      continue;
    }
    size_t end = i + 1;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
    const int32_t id = std::stoi(text.substr(i + 1, end - i - 1));
    const auto symbol = std::ranges::find(assumptions.symbols, id, &SizeAssumptions::Symbol::id);
    result += symbol == assumptions.symbols.end() ? text.substr(i, end - i) : symbol->place.name();
    i = end;
  }
  return result;
}

namespace {

std::string range_text(const SizeAssumptions::Symbol& symbol) {
  const std::string name = symbol.place.name();
  const bool high = symbol.range.high < kMostSize;
  if (symbol.range.low == INT64_MIN) return high ? name + " <= " + std::to_string(symbol.range.high) : "";
  return std::to_string(symbol.range.low) + " <= " + name + (high ? " <= " + std::to_string(symbol.range.high) : "");
}

/// In the order in which they are checked; empty: of all numbers.
std::vector<std::string> all_lines(const SizeAssumptions& assumptions) {
  std::vector<std::string> lines;
  for (const auto& symbol : assumptions.symbols) lines.push_back(range_text(symbol));
  for (const auto& same : assumptions.same) {
    lines.push_back(same.place.name() + " == " + in_places(shapes::text(same.is), assumptions));
  }
  for (const auto& relation : assumptions.relations) {
    lines.push_back(in_places(shapes::condition(relation), assumptions));
  }
  return lines;
}

}  // namespace

std::vector<std::string> SizeAssumptions::lines() const {
  std::vector<std::string> lines = all_lines(*this);
  std::erase(lines, "");
  return lines;
}

SizeCheck::Terms SizeCheck::terms_of(Expr expr) {
  Terms terms;
  terms.expr = expr;
  const auto factors = [&](Expr term) -> std::vector<int32_t> {
    std::vector<int32_t> symbols;
    const std::vector<Expr> parts = term.kind() == ExprKind::Product ? term.operands() : std::vector<Expr>{term};
    for (const Expr part : parts) {
      if (part.kind() != ExprKind::Symbol) {
        terms.is_polynomial = false;
      } else {
        symbols.push_back(part.id());
      }
    }
    return symbols;
  };
  if (expr.is_constant()) {
    terms.constant = expr.number();
  } else if (expr.kind() == ExprKind::Sum) {
    terms.constant = expr.number();
    for (size_t i = 0; i < expr.operands().size(); ++i) {
      terms.terms.push_back({expr.coefficients()[i], factors(expr.operands()[i])});
    }
  } else {
    terms.terms.push_back({1, factors(expr)});
  }
  return terms;
}

int64_t SizeCheck::evaluate(const Terms& terms) const {
  if (!terms.is_polynomial)
    return shapes::evaluate(terms.expr, [&](Expr leaf) { return numbers_[Expr::place(leaf.id())]; });
  int64_t total = terms.constant;
  bool overflows = false;
  for (const auto& term : terms.terms) {
    int64_t product = term.factor;
    for (const int32_t symbol : term.symbols) {
      overflows |= __builtin_mul_overflow(product, numbers_[Expr::place(symbol)], &product);
    }
    overflows |= __builtin_add_overflow(total, product, &total);
  }
  return overflows ? INT64_MIN : total;  // for which no equality and no bound holds
}

int64_t SizeCheck::read(const Found& found, PyObject* const* values, bool* ok) {
  PyObject* object = values[found.slot];
  if (!object) return *ok = false;
  if (found.kind == SizePlace::Kind::Number) {
    int overflow = 0;
    const int64_t number = PyLong_CheckExact(object) ? PyLong_AsLongLongAndOverflow(object, &overflow) : (*ok = false);
    if (overflow) *ok = false;
    return number;
  }
  if (!is_tensor(object)) return *ok = false;
  const at::Tensor& tensor = unpack_tensor(object);
  if (found.dim >= tensor.dim()) return *ok = false;
  return found.kind == SizePlace::Kind::Size ? tensor.size(found.dim) : tensor.stride(found.dim);
}

bool SizeCheck::check(PyObject* const* values, size_t* failed) const {
  bool ok = true;
  size_t at = 0;
  const auto passes = [&](bool passed) {
    *failed = at++;
    return passed && ok;
  };
  for (size_t i = 0; i < symbols_.size(); ++i) {
    const int64_t number = numbers_[Expr::place(ids_[i])] = read(symbols_[i], values, &ok);
    if (!passes(number >= ranges_[i].low && number <= ranges_[i].high)) return false;
  }
  for (size_t i = 0; i < same_.size(); ++i) {
    const int64_t number = read(same_[i], values, &ok);
    if (!passes(number == evaluate(same_terms_[i]))) return false;
  }
  for (size_t i = 0; i < relation_terms_.size(); ++i) {
    if (!passes(shapes::holds(relation_kinds_[i], evaluate(relation_terms_[i])))) return false;
  }
  return true;
}

bool SizeCheck::holds(PyObject* const* values) const {
  size_t failed;
  return check(values, &failed);
}

std::string SizeCheck::failure(PyObject* const* values, const SizeAssumptions& assumptions) const {
  size_t failed;
  if (check(values, &failed)) return {};
  const std::string line = all_lines(assumptions)[failed];
  std::string actual;
  bool ok = true;
  const auto found = [&](const Found& at) { return std::to_string(read(at, values, &ok)); };
  const size_t relation = failed - symbols_.size() - same_.size();
  if (failed < symbols_.size()) {
    actual = found(symbols_[failed]);
  } else if (failed < symbols_.size() + same_.size()) {
    actual = found(same_[failed - symbols_.size()]);
  } else {
    size_t count = 0;
    for (size_t i = 0; i < symbols_.size(); ++i) {
      if (!shapes::depends_on(assumptions.relations[relation].difference, Expr::symbol(ids_[i]))) continue;
      actual += (count++ ? ", " : "") + assumptions.symbols[i].place.name() + " is " + found(symbols_[i]);
    }
    if (count == 1) actual = actual.substr(actual.rfind(' ') + 1);
  }
  return ok ? line + ": actual " + actual : line;
}

int relation_of_line(const std::string& line, const SizeAssumptions& assumptions) {
  for (size_t i = 0; i < assumptions.relations.size(); ++i) {
    const std::string own = in_places(shapes::condition(assumptions.relations[i]), assumptions);
    if (line == own || line.starts_with(own + ": actual ")) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace magneto::guards
