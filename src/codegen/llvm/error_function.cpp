// The error function.
#include "codegen/llvm/approximations.h"
#include "codegen/llvm/erf_table.h"

namespace magneto::codegen {
namespace {

Value* erf_by_table(const Math& m, Value* x) {
  Value* a = m.at_most(m.abs(x), kErfEnd);
  // Rounds to an integer, which then is in the low bits.
  constexpr double integers = 0x1.8p23;
  Value* k = m.fma(a, m.number(1 / kErfStep), m.number(integers));
  Value* t = m.fma(m.sub(k, m.number(integers)), m.number(-kErfStep), a);
  Value* index = m.bits(k);
  Value* rest = m.look_up(index, kErfRows[0]);
  for (size_t row = 1; row < std::size(kErfRows); ++row) rest = m.fma(rest, t, m.look_up(index, kErfRows[row]));
  Value* result = m.fma(a, rest, m.mul(a, m.look_up(index, kErfPowers)));
  result = m.at_most(result, 1);
  return m.copysign(result, x);
}

/// From here on, erf(x) = 1 - exp(-x*x)*q(x); before, x + x*p(x*x). (1.5 units in the last place at most.)
constexpr double kErfTurn = 0.9;
/// The fit of q ends here; 1 - erf is a quarter of a unit.
constexpr double kErfcEnd = 3.95;

Value* erf_by_parts(const Math& m, Value* x, Value* magnitude, Value* inside, Value* gauss) {
  Value* p = m.polynomial(
      m.mul(x, x), {-0.0006088320348, 0.005011586981, -0.02677866887, 0.1128213463, -0.3761252273, 0.1283791537});
  Value* q = m.polynomial(inside, {0.0001350056586, -0.002322907426, 0.01787124891, -0.08173647262, 0.2497637996,
                                   -0.5445766823, 0.8838186994, -1.0895397, 0.9941705765});
  Value* big = m.copysign(m.fma(m.neg(gauss), q, m.number(1)), x);
  return m.select(m.b.CreateFCmpOLT(magnitude, m.number(kErfTurn)), m.fma(p, x, x), big);
}
}  // namespace

Value* erf(const Math& m, Value* x) {
  if (m.looks_up()) return erf_by_table(m, x);
  Value* magnitude = m.abs(x);
  Value* inside = m.at_most(magnitude, kErfcEnd);
  return erf_by_parts(m, x, magnitude, inside, exp_in_range(m, m.neg(m.mul(inside, inside))));
}

Value* erf_from(const Math& m, Value* x, Value* gauss) {
  if (m.looks_up()) return erf_by_table(m, x);
  Value* magnitude = m.abs(x);
  return erf_by_parts(m, x, magnitude, m.at_most(magnitude, kErfcEnd), gauss);
}

}  // namespace magneto::codegen
