// How large is what pools and convolutions give, for numbers and for sizes.
#pragma once

#include <ATen/div_rtn.h>

#include "fake/shape_rules.h"

namespace magneto::fake {

/// A parameter that is given once for all dimensions, or for each.
template <class List>
typename List::value_type at_or_last(const List& values, size_t i) {
  return values[std::min<size_t>(i, values.size() - 1)];
}

inline int64_t rounded_down(int64_t a, int64_t b) { return div_rtn(a, b); }
inline c10::SymInt rounded_down(const c10::SymInt& a, const c10::SymInt& b) { return a / b; }

/// How often a window of `kernel` with these steps fits; less than one: never.
template <class Size>
Size windows(const Size& size, const Size& kernel, const Size& stride, const Size& padding, const Size& dilation) {
  return rounded_down(size + padding * 2 - dilation * (kernel - 1) - 1, stride) + 1;
}

/// Pooled sizes of argument 0, by (input, kernel_size, stride, padding, [dilation,] ceil_mode...): the last `rank`
/// dimensions. Nothing where a window doesn't fit.
template <size_t rank, int dilation_arg, size_t ceil_arg, class C>
std::optional<Sizes<C>> pooled(const C& call) {
  auto sizes = sizes_of<C>(call.tensor(0));
  const auto kernel = sizes_argument(call, 1), padding = sizes_argument(call, 3);
  auto stride = sizes_argument(call, 2);
  if (stride.empty()) stride = kernel;
  const bool up = call.boolean(ceil_arg);
  if (sizes.size() < rank + 1) return std::nullopt;
  const auto dilation = dilation_arg < 0 ? Sizes<C>{1} : sizes_argument(call, std::max(dilation_arg, 0));
  for (size_t i = 0; i < rank; ++i) {
    Size<C>& size = sizes[sizes.size() - rank + i];
    const Size<C> step = at_or_last(stride, i), edge = at_or_last(padding, i), whole = size;
    // Rounded up: of a window that begins inside.
    size = windows<Size<C>>(up ? size + (step - 1) : size, at_or_last(kernel, i), step, edge, at_or_last(dilation, i));
    if (up && (size - 1) * step >= whole + edge) size = size - 1;
    if (size < 1) return std::nullopt;
  }
  return sizes;
}

/// The sizes of argument 0, the last of which are as argument 1 tells.
template <class C>
std::optional<Sizes<C>> resized_as_told(const C& call) {
  auto sizes = sizes_of<C>(call.tensor(0));
  const auto told = sizes_argument(call, 1);
  if (told.size() > sizes.size()) return std::nullopt;
  std::copy(told.begin(), told.end(), sizes.end() - static_cast<int64_t>(told.size()));
  return sizes;
}

}  // namespace magneto::fake
