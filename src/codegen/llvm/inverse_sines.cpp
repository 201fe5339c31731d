// asin, acos and atan.
#include "codegen/llvm/approximations.h"

namespace magneto::codegen {
namespace {

/// asin of |x| <= 1/2 by z = x^2.
Value* asin_small(const Math& m, Value* x, Value* z) {
  Value* p = m.polynomial(
      z, {3.369084720e-02, 1.714923836e-02, 3.110066274e-02, 4.459940153e-02, 7.500094543e-02, 1.666666634e-01});
  return m.fma(m.mul(x, z), p, x);
}

/// Of |x| <= 1/2 asin; of others, which are `large`, asin of sqrt((1 - |x|) / 2): asin |x| is pi/2 less twice that.
struct Reduced {
  Value* large;
  Value* angle;
};

Reduced reduced(const Math& m, Value* x) {
  Value* a = m.abs(x);
  Value* large = m.b.CreateFCmpOGT(a, m.number(0.5));
  Value* z = m.select(large, m.mul(m.sub(m.number(1), a), m.number(0.5)), m.mul(a, a));
  Value* t = m.select(large, m.sqrt(z), a);
  return {large, asin_small(m, t, z)};
}

}  // namespace

Value* atan(const Math& m, Value* x) {
  Value* a = m.abs(x);
  Value* large = m.b.CreateFCmpOGT(a, m.number(1));
  Value* t = m.select(large, m.div(m.number(1), a), a);
  Value* z = m.mul(t, t);
  Value* p = m.polynomial(z, {1.488691939e-03, -9.144629761e-03, 2.630500111e-02, -4.896051403e-02, 7.031914250e-02,
                              -8.931826777e-02, 1.108826163e-01, -1.428400379e-01, 1.999994932e-01, -3.333333308e-01});
  Value* r = m.fma(m.mul(t, z), p, t);
  Value* turned = m.add(m.sub(m.number(1.5707963705062866), r), m.number(-4.371138828673793e-08));
  return m.copysign(m.select(large, turned, r), x);
}

Value* asin(const Math& m, Value* x) {
  const auto [large, r] = reduced(m, x);
  Value* turned = m.add(m.fma(r, m.number(-2), m.number(1.5707963705062866)), m.number(-4.371138828673793e-08));
  return m.copysign(m.select(large, turned, r), x);
}

Value* acos(const Math& m, Value* x) {
  const auto [large, r] = reduced(m, x);
  Value* negative = m.b.CreateFCmpOLT(x, m.number(0));
  Value* doubled = m.add(r, r);
  Value* far = m.select(negative, m.add(m.sub(m.number(3.1415927410125732), doubled), m.number(-8.742277657347586e-08)),
                        doubled);
  Value* near = m.add(m.sub(m.number(1.5707963705062866), m.copysign(r, x)), m.number(-4.371138828673793e-08));
  return m.select(large, far, near);
}

}  // namespace magneto::codegen
