#include "shapes/size.h"

#include <algorithm>

#include "shapes/knowledge.h"

namespace magneto::shapes {

int64_t Size::number() const {
  if (expr_) throw UnknownSize("the size " + text(*expr_) + " differs from run to run");
  return hint_;
}

Size operator+(const Size& a, const Size& b) {
  if (a.is_static() && b.is_static()) return a.hint() + b.hint();
  return {a.expr() + b.expr(), a.hint() + b.hint()};
}

Size operator-(const Size& a, const Size& b) {
  if (a.is_static() && b.is_static()) return a.hint() - b.hint();
  return {a.expr() - b.expr(), a.hint() - b.hint()};
}

Size operator*(const Size& a, const Size& b) {
  if (a.is_static() && b.is_static()) return a.hint() * b.hint();
  return {a.expr() * b.expr(), a.hint() * b.hint()};
}

std::optional<Size> exact_quotient(const Size& a, const Size& b) {
  if (b == 0) return std::nullopt;
  if (a.is_static() && b.is_static()) {
    return a.hint() % b.hint() == 0 ? std::optional<Size>(a.hint() / b.hint()) : std::nullopt;
  }
  if (a == b) return 1;
  const Split parts = long_division(a.expr(), b.expr());
  if (!parts.rest.is_constant(0) || b.hint() == 0) return std::nullopt;
  return Size{parts.quotient, a.hint() / b.hint()};
}

std::vector<int64_t> numbers(const Sizes& sizes) {
  std::vector<int64_t> result;
  for (const Size& size : sizes) result.push_back(size.number());
  return result;
}

bool all_static(const Sizes& sizes) {
  return std::ranges::all_of(sizes, [](const Size& size) { return size.is_static(); });
}

std::vector<int64_t> hints(const Sizes& sizes) {
  std::vector<int64_t> result;
  for (const Size& size : sizes) result.push_back(size.hint());
  return result;
}

std::string text(const Size& size) { return size.is_static() ? std::to_string(size.hint()) : text(size.expr()); }

}  // namespace magneto::shapes
