// bf16 and f16 by their bits, rounding to nearest even as PyTorch does.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace magneto::loops {

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t to_bf16(float value) {
  if (std::isnan(value)) return 0x7FC0;
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float from_f16(uint16_t bits) {
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  if (exponent == 31) return mantissa ? std::nanf("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

inline uint16_t to_f16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7E00;
  const float size = std::fabs(value);
  if (size >= 65520.0f) return sign | 0x7C00;
  int exponent = 0;
  std::frexp(size, &exponent);  // size = m * 2^exponent, m in [0.5, 1)
  if (size == 0) return sign;
  // Half units in the last place: 2^-24 below the normal range, 2^(exponent - 11) in it.
  const int unit = exponent < -13 ? -24 : exponent - 11;
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(size, -unit)));
  // Adding the mantissa to the shifted exponent carries rightly into the next binade.
  return sign | static_cast<uint16_t>(unit == -24 ? units : ((unit + 24) << 10) + units);
}

}  // namespace magneto::loops
