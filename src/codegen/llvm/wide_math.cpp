// Functions of f64 that f32 has in other ways, within two units in the last place. The polynomials are Chebyshev fits.
#include "codegen/llvm/approximations.h"

namespace magneto::codegen {

Value* wide_tanh(const Math& m, Value* x) {
  llvm::IRBuilder<>& b = m.b;
  Value* a = m.abs(x);
  Value* z = m.mul(x, x);
  Value* p =
      m.polynomial(z, {6.934046420988954e-06, -3.2086614037935994e-05, 9.332432233847448e-05, -0.00023795201383924994,
                       0.0005897680994688268, -0.0014557958855734635, 0.0035921242500086925, -0.008863235292803289,
                       0.021869488527368107, -0.05396825396808531, 0.13333333333333205, -0.3333333333333333});
  Value* small = m.fma(m.mul(x, z), p, x);
  Value* big = m.sub(m.number(1), m.div(m.number(2), m.add(exp_in_range(m, m.at_most(m.add(a, a), 80)), m.number(1))));
  Value* result = m.copysign(m.select(b.CreateFCmpOLT(a, m.number(0.6)), small, big), x);
  return m.select(m.is_nan(x), x, result);
}

/// Below 1 a polynomial of x^2; above, 1 - exp(-x^2)*g(t) with t = (x - 3)/(x + 3), beyond 6 the number is 1.
Value* wide_erf(const Math& m, Value* x) {
  llvm::IRBuilder<>& b = m.b;
  Value* a = m.abs(x);
  Value* z = m.mul(x, x);
  Value* p =
      m.polynomial(z, {-4.230945824295338e-12, 8.709045129053106e-11, -1.216456005728345e-09, 1.4792401209404813e-08,
                       -1.6364642158167616e-07, 1.6462045441468418e-06, -1.4925647567519332e-05, 0.00012055332902888736,
                       -0.000854832702193483, 0.0052239776254232985, -0.02686617064512984, 0.1128379167095512,
                       -0.37612638903183754, 0.1283791670955126});
  Value* small = m.fma(p, x, x);
  Value* inside = m.clamp(a, 1, 6);
  Value* t = m.div(m.sub(inside, m.number(3)), m.add(inside, m.number(3)));
  Value* g =
      m.polynomial(t, {3.381355142042904e-09, 1.2755818949624478e-06, 2.0135111426447427e-06, -8.00978093907608e-06,
                       -1.2845780030775907e-05, 6.406279226046039e-05, 4.525434558991009e-05, -0.0005970624964924544,
                       0.0007077464666941425, 0.004269136356961225, -0.024392499318915004, 0.07166583719747308,
                       -0.15011593650077898, 0.24560380171233487, -0.3262335600430372, 0.17900115118138996});
  Value* big = m.sub(m.number(1), m.mul(exp_in_range(m, m.neg(m.mul(inside, inside))), g));
  big = m.copysign(big, x);
  Value* result = m.select(b.CreateFCmpOLT(a, m.number(1)), small, big);
  return m.select(m.is_nan(x), x, result);
}

/// x is n quarters of a turn and a rest in two parts, by pi/2 in three; then Taylor's series, which ends where f64
/// does.
Value* wide_sine(const Math& m, Value* x, int quarters) {
  llvm::IRBuilder<>& b = m.b;
  Value* n = m.round(m.mul(x, m.number(0x1.45f306dc9c883p-1)));
  Value* minus = m.neg(n);
  Value* first = m.fma(minus, m.number(0x1.921fb54442d18p+0), x);  // exact
  Value* r = m.fma(minus, m.number(0x1.1a62633145c07p-54), first);
  Value* low = m.fma(minus, m.number(0x1.1a62633145c07p-54), m.sub(first, r));
  low = m.fma(minus, m.number(-0x1.f1976b7ed8fbcp-110), low);
  Value* z = m.mul(r, r);
  Value* s =
      m.polynomial(z, {2.8114572543455206e-15, -7.647163731819816e-13, 1.6059043836821613e-10, -2.505210838544172e-08,
                       2.7557319223985893e-06, -0.0001984126984126984, 0.008333333333333333, -0.16666666666666666});
  Value* sin_value = m.add(r, m.fma(m.mul(r, z), s, low));
  Value* c =
      m.polynomial(z, {-1.5619206968586225e-16, 4.779477332387385e-14, -1.1470745597729725e-11, 2.08767569878681e-09,
                       -2.755731922398589e-07, 2.48015873015873e-05, -0.001388888888888889, 0.041666666666666664});
  Value* half = m.mul(z, m.number(0.5));
  Value* near = m.sub(m.number(1), half);
  Value* lost = m.sub(m.sub(m.number(1), near), half);
  Value* cos_value = m.add(near, m.fma(m.mul(z, z), c, m.sub(lost, m.mul(r, low))));
  Type* narrow = with_lanes_of(b.getInt32Ty(), x->getType());
  Value* quadrant = b.CreateZExt(b.CreateFreeze(b.CreateFPToSI(n, narrow)), m.int_type());
  quadrant = b.CreateAdd(quadrant, m.integer(quarters));
  Value* odd = b.CreateICmpNE(b.CreateAnd(quadrant, m.integer(1)), m.integer(0));
  Value* flip = b.CreateShl(b.CreateAnd(quadrant, m.integer(2)), m.integer(62));
  Value* result = m.from_bits(b.CreateXor(m.bits(m.select(odd, cos_value, sin_value)), flip));
  if (quarters) return result;
  // -0 and denormals are their own sines.
  return m.select(b.CreateFCmpOLT(m.abs(x), m.number(1e-9)), x, result);
}

}  // namespace magneto::codegen
