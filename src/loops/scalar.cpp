#include "loops/scalar.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "loops/narrow.h"

namespace magneto::loops {
namespace {

/// In long double, so that the rounding to f32 or f64 is the only error.
long double float_op(Op op, const long double* x) {
  const long double a = x[0], b = x[1];
  switch (op) {
    case Op::Neg:
      return -a;
    case Op::Abs:
      return std::fabs(a);
    case Op::Sign:
      return static_cast<long double>((a > 0) - (a < 0));
    case Op::Floor:
      return std::floor(a);
    case Op::Ceil:
      return std::ceil(a);
    case Op::Trunc:
      return std::trunc(a);
    case Op::Round:
      return std::nearbyint(a);
    case Op::Sqrt:
      return std::sqrt(a);
    case Op::Rsqrt:
      return 1 / std::sqrt(a);
    case Op::Reciprocal:
      return 1 / a;
    case Op::Exp:
      return std::exp(a);
    case Op::Exp2:
      return std::exp2(a);
    case Op::Expm1:
      return std::expm1(a);
    case Op::Log:
      return std::log(a);
    case Op::Log2:
      return std::log2(a);
    case Op::Log10:
      return std::log10(a);
    case Op::Log1p:
      return std::log1p(a);
    case Op::Sigmoid:
      return 1 / (1 + std::exp(-a));
    case Op::Tanh:
      return std::tanh(a);
    case Op::Erf:
      return std::erf(a);
    case Op::Erfc:
      return std::erfc(a);
    case Op::Sin:
      return std::sin(a);
    case Op::Cos:
      return std::cos(a);
    case Op::Tan:
      return std::tan(a);
    case Op::Asin:
      return std::asin(a);
    case Op::Acos:
      return std::acos(a);
    case Op::Atan:
      return std::atan(a);
    case Op::Sinh:
      return std::sinh(a);
    case Op::Cosh:
      return std::cosh(a);
    case Op::Asinh:
      return std::asinh(a);
    case Op::Acosh:
      return std::acosh(a);
    case Op::Atanh:
      return std::atanh(a);
    case Op::Lgamma:
      return std::lgamma(a);
    case Op::Add:
      return a + b;
    case Op::Sub:
      return a - b;
    case Op::Mul:
      return a * b;
    case Op::Div:
      return a / b;
    case Op::Fmod:
      return std::fmod(a, b);
    case Op::Min:
      return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
    case Op::Max:
      return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
    case Op::Pow:
      return std::pow(a, b);
    case Op::Atan2:
      return std::atan2(a, b);
    case Op::Copysign:
      return std::copysign(a, b);
    case Op::ErfFrom:
      return std::erf(a);
    case Op::Fma:
      return std::fma(a, b, x[2]);
    default:
      throw std::logic_error("no operation on floats");
  }
}

/// torch.remainder and torch.div(rounding_mode="floor") in the arithmetic of the dtype, as c10's div_floor_floating.
template <typename Float>
Float floor_op(Op op, Float a, Float b) {
  Float rest = std::fmod(a, b);
  if (op == Op::Mod) return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
  if (b == 0) return a / b;
  Float quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(Float(0), a / b);
  const Float floor = std::floor(quotient);
  return quotient - floor > Float(0.5) ? floor + 1 : floor;
}

int bits_of(Dtype dtype) { return static_cast<int>(dtype_bytes(dtype)) * 8; }

int64_t power(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  uint64_t result = 1, factor = static_cast<uint64_t>(base);
  for (; exponent; exponent >>= 1, factor *= factor) {
    if (exponent & 1) result *= factor;
  }
  return static_cast<int64_t>(result);
}

int64_t integer_op(Op op, Dtype dtype, const Scalar* x) {
  const int64_t a = x[0].i, b = x[1].i;
  const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  switch (op) {
    case Op::Neg:
      return static_cast<int64_t>(0 - ua);
    case Op::Abs:
      return a < 0 ? static_cast<int64_t>(0 - ua) : a;
    case Op::Sign:
      return (a > 0) - (a < 0);
    case Op::Not:
      return dtype == Dtype::Bool ? !a : ~a;
    case Op::Add:
      return static_cast<int64_t>(ua + ub);
    case Op::Sub:
      return static_cast<int64_t>(ua - ub);
    case Op::Mul:
      return static_cast<int64_t>(ua * ub);
    case Op::Div:
      return b == 0 ? 0 : b == -1 ? static_cast<int64_t>(0 - ua) : a / b;
    case Op::FloorDiv:
      return shapes::floor_div(a, b);
    case Op::Mod:
      return shapes::mod(a, b);
    case Op::Fmod:
      return b == 0 || b == -1 ? 0 : a % b;
    case Op::Min:
      return std::min(a, b);
    case Op::Max:
      return std::max(a, b);
    case Op::Pow:
      return power(a, b);
    case Op::And:
      return a & b;
    case Op::Or:
      return a | b;
    case Op::Xor:
      return a ^ b;
    case Op::Shl:
      return b < 0 || b >= bits_of(dtype) ? 0 : static_cast<int64_t>(ua << b);
    case Op::Shr:
      return b < 0 || b >= bits_of(dtype) ? (a < 0 ? -1 : 0) : a >> b;
    default:
      throw std::logic_error("no operation on integers");
  }
}

}  // namespace

int64_t wrap(Dtype dtype, int64_t number) {
  switch (dtype) {
    case Dtype::I8:
      return static_cast<int8_t>(number);
    case Dtype::I16:
      return static_cast<int16_t>(number);
    case Dtype::I32:
      return static_cast<int32_t>(number);
    case Dtype::U8:
      return static_cast<uint8_t>(number);
    case Dtype::Bool:
      return number != 0;
    default:
      return number;
  }
}

Scalar rounded(Dtype dtype, long double number) {
  return Scalar::of_float(dtype == Dtype::F64 ? static_cast<double>(number)
                                              : static_cast<double>(static_cast<float>(number)));
}

Scalar extreme(Dtype dtype, bool greatest) {
  if (is_float(dtype)) return Scalar::of_float(greatest ? INFINITY : -INFINITY);
  const int bits = bits_of(dtype);
  if (dtype == Dtype::U8) return Scalar::of_int(greatest ? 255 : 0);
  if (dtype == Dtype::Bool) return Scalar::of_int(greatest);
  const int64_t most = bits == 64 ? INT64_MAX : (int64_t{1} << (bits - 1)) - 1;
  return Scalar::of_int(greatest ? most : -most - 1);
}

Scalar compute(Op op, Dtype dtype, const Scalar* operands) {
  if (!is_float(dtype)) return Scalar::of_int(wrap(dtype, integer_op(op, dtype, operands)));
  if (op == Op::RoundBF16) return Scalar::of_float(from_bf16(to_bf16(static_cast<float>(operands[0].f))));
  if (op == Op::RoundF16) return Scalar::of_float(from_f16(to_f16(static_cast<float>(operands[0].f))));
  if (op == Op::FloorDiv || op == Op::Mod) {
    if (dtype == Dtype::F64) return Scalar::of_float(floor_op(op, operands[0].f, operands[1].f));
    return Scalar::of_float(floor_op(op, static_cast<float>(operands[0].f), static_cast<float>(operands[1].f)));
  }
  // Not in the order of binary64's operations: long double has 64 bits, so f32 and f64 results are rounded once but for
  // halfway cases of f64, where the machine's own operation is exact.
  const double a = operands[0].f, b = facts(op).operands > 1 ? operands[1].f : 0;
  if (dtype == Dtype::F64) {
    if (op == Op::Add) return Scalar::of_float(a + b);
    if (op == Op::Sub) return Scalar::of_float(a - b);
    if (op == Op::Mul) return Scalar::of_float(a * b);
    if (op == Op::Div) return Scalar::of_float(a / b);
    if (op == Op::Sqrt) return Scalar::of_float(std::sqrt(a));
    if (op == Op::Fma) return Scalar::of_float(std::fma(a, b, operands[2].f));
  } else if (op == Op::Fma) {
    return Scalar::of_float(std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(operands[2].f)));
  }
  const long double x[3] = {a, b, facts(op).operands > 2 ? operands[2].f : 0};
  return rounded(dtype, float_op(op, x));
}

bool compare(Op op, Scalar a, Scalar b, Dtype dtype) {
  const auto test = [&](auto x, auto y) {
    switch (op) {
      case Op::Eq:
        return x == y;
      case Op::Ne:
        return x != y;
      case Op::Lt:
        return x < y;
      case Op::Le:
        return x <= y;
      case Op::Gt:
        return x > y;
      default:
        return x >= y;
    }
  };
  return is_float(dtype) ? test(a.f, b.f) : test(a.i, b.i);
}

Scalar cast(Dtype from, Dtype to, Scalar value) {
  if (is_float(from)) {
    if (is_float(to)) return rounded(to, value.f);
    if (to == Dtype::Bool) return Scalar::of_int(value.f != 0);
    // What x86's conversion gives for NaN and for what is out of range.
    const double limit = to == Dtype::I32 || to == Dtype::I16 || to == Dtype::I8 || to == Dtype::U8 ? 0x1p31 : 0x1p63;
    if (!(value.f >= -limit && value.f < limit))
      return Scalar::of_int(wrap(to, limit == 0x1p31 ? INT32_MIN : INT64_MIN));
    return Scalar::of_int(wrap(to, static_cast<int64_t>(value.f)));
  }
  if (!is_float(to)) return Scalar::of_int(wrap(to, value.i));
  return to == Dtype::F64 ? Scalar::of_float(static_cast<double>(value.i))
                          : Scalar::of_float(static_cast<float>(value.i));
}

namespace {

template <typename T>
T get(const void* element) {
  T value;
  std::memcpy(&value, element, sizeof value);
  return value;
}

template <typename T>
void put(void* element, T value) {
  std::memcpy(element, &value, sizeof value);
}

}  // namespace

Scalar load_element(Dtype dtype, const void* element) {
  switch (dtype) {
    case Dtype::BF16:
      return Scalar::of_float(from_bf16(get<uint16_t>(element)));
    case Dtype::F16:
      return Scalar::of_float(from_f16(get<uint16_t>(element)));
    case Dtype::F32:
      return Scalar::of_float(get<float>(element));
    case Dtype::F64:
      return Scalar::of_float(get<double>(element));
    case Dtype::I8:
      return Scalar::of_int(get<int8_t>(element));
    case Dtype::I16:
      return Scalar::of_int(get<int16_t>(element));
    case Dtype::I32:
      return Scalar::of_int(get<int32_t>(element));
    case Dtype::I64:
      return Scalar::of_int(get<int64_t>(element));
    case Dtype::U8:
      return Scalar::of_int(get<uint8_t>(element));
    case Dtype::Bool:
      return Scalar::of_int(get<uint8_t>(element) != 0);
  }
  return {};
}

void store_element(Dtype dtype, void* element, Scalar value) {
  switch (dtype) {
    case Dtype::BF16:
      return put(element, to_bf16(static_cast<float>(value.f)));
    case Dtype::F16:
      return put(element, to_f16(static_cast<float>(value.f)));
    case Dtype::F32:
      return put(element, static_cast<float>(value.f));
    case Dtype::F64:
      return put(element, value.f);
    case Dtype::I8:
    case Dtype::U8:
    case Dtype::Bool:
      return put(element, static_cast<uint8_t>(value.i));
    case Dtype::I16:
      return put(element, static_cast<int16_t>(value.i));
    case Dtype::I32:
      return put(element, static_cast<int32_t>(value.i));
    case Dtype::I64:
      return put(element, value.i);
  }
}

}  // namespace magneto::loops
