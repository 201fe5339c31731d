// The error function.
#include "codegen/llvm/approximations.h"
#include "codegen/llvm/erf_table.h"

namespace magneto::codegen {
namespace {

Value* erf_by_table(const Math& m, Value* x) {
  Value* a = m.abs(x);
  a = m.select(m.b.CreateFCmpOLT(m.number(kErfEnd), a), m.number(kErfEnd), a);  // NaN stays
  // Rounds to an integer, which then is in the low bits.
  constexpr double integers = 0x1.8p23;
  Value* k = m.fma(a, m.number(1 / kErfStep), m.number(integers));
  Value* t = m.fma(m.sub(k, m.number(integers)), m.number(-kErfStep), a);
  Value* index = m.bits(k);
  Value* rest = m.look_up(index, kErfRows[0]);
  for (size_t row = 1; row < std::size(kErfRows); ++row) rest = m.fma(rest, t, m.look_up(index, kErfRows[row]));
  Value* result = m.fma(a, rest, m.mul(a, m.look_up(index, kErfPowers)));
  result = m.select(m.b.CreateFCmpOLT(m.number(1), result), m.number(1), result);
  return m.copysign(result, x);
}
}  // namespace

Value* erf(const Math& m, Value* x) {
  if (m.looks_up()) return erf_by_table(m, x);
  Value* a = m.abs(x);
  Value* p = m.polynomial(m.mul(x, x), {8.347686559e-05, -8.137793761e-04, 5.200641545e-03, -2.685926176e-02,
                                        1.128369351e-01, -3.761263365e-01, 1.283791666e-01});
  Value* small = m.fma(p, x, x);
  // erfc(a) = exp(-a + a*q(a))
  Value* inside = m.clamp(a, 0, 4.1);
  Value* q =
      m.polynomial(inside, {2.231732541e-07, -3.443915345e-06, 4.051715536e-06, 3.163990723e-04, -3.780389619e-03,
                            2.421256110e-02, -1.068686493e-01, -6.347244700e-01, -1.287617472e-01});
  Value* big = m.sub(m.number(1), exp(m, m.fma(q, inside, m.neg(inside))));
  big = m.select(m.is_nan(x), x, m.copysign(big, x));
  return m.select(m.b.CreateFCmpOLT(a, m.number(0.9277)), small, big);
}

}  // namespace magneto::codegen
