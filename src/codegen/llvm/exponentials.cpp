// Exponentials, and what is made of them.
#include "codegen/llvm/approximations.h"

namespace magneto::codegen {
namespace {

/// 2^(i/16), and what f32 can't hold of it.
constexpr float kSixteenthPowers[16] = {1.0F,        1.04427373F, 1.09050775F, 1.13878858F, 1.18920708F, 1.24185777F,
                                        1.29683959F, 1.35425556F, 1.41421354F, 1.47682619F, 1.54221082F, 1.61049032F,
                                        1.68179286F, 1.75625217F, 1.8340081F,  1.91520655F};
constexpr float kSixteenthRests[16] = {0.0F,           4.833470e-08F,  -1.307754e-08F, 5.386222e-08F,
                                       3.797635e-08F,  4.496838e-08F,  -4.018999e-08F, -1.012335e-08F,
                                       2.420323e-08F,  -4.500899e-08F, 8.070905e-09F,  9.836217e-09F,
                                       -2.475533e-08F, -9.235770e-09F, -1.123928e-08F, 9.845328e-09F};

/// (exp(r) - 1 - r)/r^2 for |r| <= ln(2)/2.
Value* exp_tail(const Math& m, Value* r) {
  if (m.wide()) {
    return m.polynomial(r,
                        {1.6087177234380782e-10, 2.0918961837795778e-09, 2.5052069594795685e-08, 2.755726102934377e-07,
                         2.7557319248633827e-06, 2.4801587338565345e-05, 0.00019841269841262761, 0.0013888888888878269,
                         0.008333333333333333, 0.04166666666666668, 0.16666666666666666, 0.5});
  }
  return m.polynomial(r, {1.392692661e-03, 8.363773874e-03, 4.166655011e-02, 1.666657338e-01, 5.000000000e-01});
}

/// x == n*ln(2) + r, n an integer; also in the low bits of `bits`, in two's complement.
struct Parts {
  Value *n, *r, *bits;
};

Parts by_ln2(const Math& m, Value* x) {
  // Adding a number whose last digit is the ones rounds: for |x| below a quarter of it.
  Value* ones = m.number(m.wide() ? 0x1.8p52 : 0x1.8p23);
  Value* sum = m.fma(x, m.number(1.4426950408889634), ones);
  Value* n = m.sub(sum, ones);
  Value* r = m.fma(n, m.number(m.wide() ? -0x1.62e42fee00000p-1 : -0.693359375), x);
  r = m.fma(n, m.number(m.wide() ? -0x1.a39ef35793c76p-33 : 0.00021219444170128554), r);
  return {n, r, m.bits(sum)};
}

/// exp(r) for |r| <= ln(2)/2.
Value* exp_of_rest(const Math& m, Value* r) { return m.fma(r, m.fma(r, exp_tail(m, r), m.number(1)), m.number(1)); }

/// x == n*ln(2) + r with n in sixteenths: 2^n is looked up but for its whole part, which the machine's own
/// instruction takes from n, and r is so small that two coefficients do (0.77 units in the last place at most). NaN
/// goes through.
Value* exp_by_table(const Math& m, Value* x) {
  Value* inside = m.at_most(x, 89);
  Value* sixteenths = m.number(0x1.8p19);  // adding it leaves n's sixteenths in the four last bits
  Value* sum = m.fma(inside, m.number(1.4426950408889634), sixteenths);
  Value* n = m.sub(sum, sixteenths);
  Value* r = m.fma(n, m.number(-0.693359375), inside);
  r = m.fma(n, m.number(0.00021219444170128554), r);
  Value* index = m.b.CreateBitCast(sum, m.int_type());
  Value* power = m.look_up(index, kSixteenthPowers);
  Value* p = m.polynomial(r, {0.16667057573795319, 0.5000162124633789, 1});
  return m.scale_registers(m.fma(m.fma(power, r, m.look_up(index, kSixteenthRests)), p, power), n,
                           m.b.CreateFCmpUGT(x, m.number(-104)));
}
}  // namespace

Value* exp(const Math& m, Value* x) {
  // Beyond these the result is 0 or infinity anyway, and 2^n stays in reach of `scale`. What masks have hidden (-1e9,
  // -inf) is not computed: numbers that underflow take a hundred times as long as others.
  const double low = m.wide() ? -746 : -104, high = m.wide() ? 710 : 89;
  if (m.looks_up()) return exp_by_table(m, x);
  if (m.scales()) {  // NaN goes through all of it
    const Parts parts = by_ln2(m, m.at_most(x, high));
    return m.scale_registers(exp_of_rest(m, parts.r), parts.n, m.b.CreateFCmpUGT(x, m.number(low)));
  }
  Value* hidden = m.b.CreateFCmpOLT(x, m.number(low));
  const Parts parts = by_ln2(m, m.at_most(m.select(hidden, m.number(0), x), high));
  // 2^n in two halves: it may be too large or too small for one number. NaN goes through.
  Value* half = m.b.CreateLShr(parts.bits, m.integer(1));
  Value* result = m.mul(exp_of_rest(m, parts.r), m.power_in_bits(half));
  return m.select(hidden, m.number(0), m.mul(result, m.power_in_bits(m.b.CreateSub(parts.bits, half))));
}

Value* exp_in_range(const Math& m, Value* x) {
  const Parts parts = by_ln2(m, x);
  return m.mul(exp_of_rest(m, parts.r), m.power_in_bits(parts.bits));
}

Value* exp2(const Math& m, Value* x) {
  Value* inside = m.wide() ? m.clamp(x, -1076, 1025) : m.clamp(x, -151, 129);
  Value* n = m.round(inside);
  // ln(2) in two parts, so that the product's rounding does not show.
  Value* f = m.sub(inside, n);
  Value* r = m.mul(f, m.number(0.6931471805599453));
  if (m.wide()) r = m.fma(f, m.number(2.3190468138462996e-17), r);
  Value* result = m.scale(m.add(m.fma(m.mul(r, r), exp_tail(m, r), r), m.number(1)), n);
  return m.select(m.is_nan(x), x, result);
}

Value* expm1(const Math& m, Value* x) {
  Value* inside = m.wide() ? m.clamp(x, -40, 710) : m.clamp(x, -18, 89);
  const auto [n, r, bits] = by_ln2(m, inside);
  Value* p = m.fma(m.mul(r, r), exp_tail(m, r), r);
  // (p + 1)*2^n - 1, by halves so that 2^n is finite.
  Value* half = m.power_of_two(m.sub(n, m.number(1)));
  Value* result = m.mul(m.fma(half, p, m.sub(half, m.number(0.5))), m.number(2));
  result = m.select(m.b.CreateFCmpOEQ(n, m.number(0)), p, result);
  // Denormals and -0 are their own result; so is NaN.
  Value* tiny = m.b.CreateFCmpOLT(m.abs(x), m.number(m.wide() ? 1e-300 : 1e-30));
  return m.select(m.b.CreateOr(tiny, m.is_nan(x)), x, result);
}

Value* sigmoid(const Math& m, Value* x) {
  Value* z = exp(m, m.neg(m.abs(x)));
  Value* top = m.select(m.b.CreateFCmpOLT(x, m.number(0)), z, m.number(1));
  return m.div(top, m.add(m.number(1), z));  // NaN comes out of exp
}

Value* tanh(const Math& m, Value* x) {
  Value* a = m.abs(x);
  Value* z = m.mul(x, x);
  Value* p = m.polynomial(
      z, {2.269501684e-03, -8.323187058e-03, 2.176250291e-02, -5.395846163e-02, 1.333330015e-01, -3.333333315e-01});
  Value* small = m.fma(m.mul(x, z), p, x);
  Value* big = m.sub(m.number(1), m.div(m.number(2), m.add(exp_in_range(m, m.at_most(m.add(a, a), 40)), m.number(1))));
  return m.copysign(m.select(m.b.CreateFCmpOLT(a, m.number(0.625)), small, big), x);
}

}  // namespace magneto::codegen
