// Logarithms.
#include "codegen/llvm/approximations.h"

namespace magneto::codegen {
namespace {

struct Split {
  Value* exponent;
  Value* fraction;  // in [sqrt(1/2) - 1, sqrt(2) - 1]
};
/// A positive finite x == 2^exponent * (1 + fraction).
Split split(const Math& m, Value* x) {
  const int mantissa = m.wide() ? 52 : 23;
  // Denormals are scaled into the normal range first.
  Value* small = m.b.CreateFCmpOLT(x, m.number(m.wide() ? 0x1p-1022 : 0x1p-126));
  x = m.select(small, m.mul(x, m.number(m.wide() ? 0x1p54 : 0x1p25)), x);
  Value* word = m.bits(x);
  // The bits of sqrt(1/2): below it the exponent steps.
  Value* offset = m.b.CreateSub(word, m.integer(m.wide() ? 0x3FE6A09E667F3BCD : 0x3F3504F3));
  Value* exponent = m.b.CreateAShr(offset, m.integer(mantissa));
  Value* scaled = m.from_bits(m.b.CreateSub(word, m.b.CreateShl(exponent, m.integer(mantissa))));
  Value* e = m.b.CreateSIToFP(exponent, m.type());
  e = m.sub(e, m.select(small, m.number(m.wide() ? 54 : 25), m.number(0)));
  return {e, m.sub(scaled, m.number(1))};
}

/// log(1 + f) == f + result.
Value* log_tail(const Math& m, Value* f) {
  if (m.wide()) {
    Value* s = m.div(f, m.add(f, m.number(2)));
    Value* z = m.mul(s, s);
    Value* tail =
        m.mul(z, m.polynomial(z, {0.13088193319166916, 0.13268623200325125, 0.15386245304628174, 0.18181795537085654,
                                  0.22222222392678806, 0.2857142857079935, 0.40000000000000885, 0.6666666666666666}));
    Value* half = m.mul(m.mul(f, f), m.number(0.5));
    return m.sub(m.mul(s, m.add(half, tail)), half);
  }
  Value* g = m.polynomial(f, {6.972518634e-02, -1.148121206e-01, 1.168578472e-01, -1.242552336e-01, 1.424900724e-01,
                              -1.666780713e-01, 2.000071721e-01, -2.499999693e-01, 3.333333117e-01});
  Value* square = m.mul(f, f);
  return m.mul(square, m.fma(f, g, m.number(-0.5)));
}

/// log's results outside (0, infinity).
Value* log_special(const Math& m, Value* x, Value* result) {
  result = m.select(m.b.CreateFCmpOEQ(x, m.number(kInfinity)), x, result);
  result = m.select(m.b.CreateFCmpOEQ(x, m.number(0)), m.number(-kInfinity), result);
  return m.select(m.b.CreateFCmpULT(x, m.number(0)), m.select(m.is_nan(x), x, m.number(kNan)), result);
}

Value* log_of(const Math& m, Split parts) {
  const auto [e, f] = parts;
  Value* tail = log_tail(m, f);
  Value* low = m.wide() ? m.number(0x1.a39ef35793c76p-33) : m.number(-0.00021219444170128554);
  Value* high = m.wide() ? m.number(0x1.62e42fee00000p-1) : m.number(0.693359375);
  return m.fma(e, high, m.add(f, m.fma(e, low, tail)));
}

/// e*unit + log(1 + f)*factor, all numbers in two parts.
Value* log_scaled(const Math& m, Value* x, double unit_high, double unit_low, double factor, double factor_low) {
  const auto [e, f] = split(m, x);
  Value* tail = log_tail(m, f);
  Value* head = m.mul(f, m.number(factor));
  Value* rest = m.fma(f, m.number(factor), m.neg(head));  // what rounding the head lost
  rest = m.fma(f, m.number(factor_low), rest);
  rest = m.fma(tail, m.number(factor), rest);
  rest = m.fma(e, m.number(unit_low), rest);
  return log_special(m, x, m.fma(e, m.number(unit_high), m.add(head, rest)));
}
}  // namespace

Value* log(const Math& m, Value* x) { return log_special(m, x, log_of(m, split(m, x))); }

Value* log2(const Math& m, Value* x) {
  return m.wide() ? log_scaled(m, x, 1, 0, 1.4426950408889634, 2.0355273740931033e-17)
                  : log_scaled(m, x, 1, 0, 1.4426950216293335, 1.925963033500011e-08);
}

Value* log10(const Math& m, Value* x) {
  return m.wide()
             ? log_scaled(m, x, 0x1.34413509f6000p-2, 3.694239077158931e-13, 0.4342944819032518, 1.098319650216765e-17)
             : log_scaled(m, x, 0.30078125, 0.00024874566588550806, 0.4342944920063019, -1.0103049952192578e-08);
}

Value* log1p(const Math& m, Value* x) {
  // log(u) for the rounded u = 1 + x, and what rounding lost, relative to u.
  Value* u = m.add(m.number(1), x);
  Value* lost = m.sub(x, m.sub(u, m.number(1)));
  // Where x is the greater part, 1 is what loses digits.
  Value* large = m.b.CreateFCmpOGT(x, m.number(1));
  lost = m.select(large, m.sub(m.number(1), m.sub(u, x)), lost);
  Value* result = m.add(log_of(m, split(m, u)), m.div(lost, u));
  result = log_special(m, u, result);
  Value* tiny = m.b.CreateFCmpOLT(m.abs(x), m.number(m.wide() ? 1e-17 : 1e-8));
  return m.select(tiny, x, result);
}

}  // namespace magneto::codegen
