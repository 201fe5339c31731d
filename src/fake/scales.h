// Factors by which images are scaled.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

namespace magneto::fake {

/// A factor as whole numbers, one divided by the other, where a size times the factor is exact in doubles: 1.5 is 3
/// / 2.
inline std::optional<std::pair<int64_t, int64_t>> partition(double factor) {
  constexpr int64_t kMostParts = 64;
  for (int64_t parts = 1; parts <= kMostParts; parts *= 2) {
    const double whole = factor * static_cast<double>(parts);
    if (whole == std::floor(whole) && std::abs(whole) < 1e6) return std::pair(static_cast<int64_t>(whole), parts);
  }
  return std::nullopt;
}

}  // namespace magneto::fake
