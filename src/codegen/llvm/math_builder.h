// The code of functions in the making: LLVM's builder under the names of arithmetic, and the functions themselves, for
// f32 and where it says so for f64. Those of f64 that are made in other ways: wide_math.cpp.
#pragma once

#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <limits>
#include <numeric>

#include "codegen/llvm/erf_table.h"
#include "codegen/llvm/vector_math.h"

namespace magneto::codegen {

using llvm::IRBuilder;
using llvm::Type;
using llvm::Value;

/// 2^(i/16), and what f32 can't hold of it.
inline constexpr float kSixteenthPowers[16] = {
    1.0F,        1.04427373F, 1.09050775F, 1.13878858F, 1.18920708F, 1.24185777F, 1.29683959F, 1.35425556F,
    1.41421354F, 1.47682619F, 1.54221082F, 1.61049032F, 1.68179286F, 1.75625217F, 1.8340081F,  1.91520655F};
inline constexpr float kSixteenthRests[16] = {0.0F,           4.833470e-08F,  -1.307754e-08F, 5.386222e-08F,
                                              3.797635e-08F,  4.496838e-08F,  -4.018999e-08F, -1.012335e-08F,
                                              2.420323e-08F,  -4.500899e-08F, 8.070905e-09F,  9.836217e-09F,
                                              -2.475533e-08F, -9.235770e-09F, -1.123928e-08F, 9.845328e-09F};

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline const double kNan = std::numeric_limits<double>::quiet_NaN();

/// One function's code in the making: LLVM's builder under the names of arithmetic. `like` gives constants their type.
class Math {
 public:
  Math(IRBuilder<>& builder, Value* like) : b(builder), type_(like->getType()) {
    wide_ = type_->getScalarType()->isDoubleTy();
    const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type_);
    const llvm::Function* function = b.GetInsertBlock()->getParent();
    if (vector && function->hasFnAttribute(kScalesByPowers)) {
      // Whole registers, the widest that divide the vector.
      const unsigned lanes = vector->getNumElements();
      for (const unsigned bytes : {64U, 32U, 16U}) {
        const unsigned own = bytes / (wide_ ? 8 : 4);
        if (scale_lanes_ == 0 && lanes % own == 0) scale_lanes_ = own;
      }
    }
  }

  bool wide() const { return wide_; }
  Value* number(double value) const { return llvm::ConstantFP::get(type_, value); }
  Type* int_type() const { return with_lanes_of(wide_ ? b.getInt64Ty() : b.getInt32Ty(), type_); }
  Value* integer(int64_t value) const { return llvm::ConstantInt::get(int_type(), static_cast<uint64_t>(value), true); }

  Value* add(Value* x, Value* y) const { return b.CreateFAdd(x, y); }
  Value* sub(Value* x, Value* y) const { return b.CreateFSub(x, y); }
  Value* mul(Value* x, Value* y) const { return b.CreateFMul(x, y); }
  Value* div(Value* x, Value* y) const { return b.CreateFDiv(x, y); }
  Value* neg(Value* x) const { return b.CreateFNeg(x); }
  Value* fma(Value* x, Value* y, Value* z) const { return b.CreateIntrinsic(llvm::Intrinsic::fma, {type_}, {x, y, z}); }
  Value* abs(Value* x) const { return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x); }
  Value* sqrt(Value* x) const { return b.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x); }
  Value* round(Value* x) const { return b.CreateUnaryIntrinsic(llvm::Intrinsic::roundeven, x); }
  Value* copysign(Value* x, Value* sign) const { return b.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, x, sign); }
  Value* select(Value* condition, Value* x, Value* y) const { return b.CreateSelect(condition, x, y); }
  Value* bits(Value* x) const { return b.CreateBitCast(x, int_type()); }
  Value* from_bits(Value* x) const { return b.CreateBitCast(x, type_); }
  /// Within [low, high]; NaN gives low.
  Value* clamp(Value* x, double low, double high) const {
    x = select(b.CreateFCmpOGT(x, number(low)), x, number(low));
    return select(b.CreateFCmpOLT(x, number(high)), x, number(high));
  }

  Value* polynomial(Value* x, std::initializer_list<double> coefficients) const {
    Value* result = nullptr;
    for (const double coefficient : coefficients) {
      result = result ? fma(result, x, number(coefficient)) : number(coefficient);
    }
    return result;
  }

  Value* is_nan(Value* x) const { return b.CreateFCmpUNO(x, x); }

  /// 2^n for n (an integer in a float) within the normal exponents.
  Value* power_of_two(Value* n) const {
    Value* whole = b.CreateFPToSI(n, int_type());
    const int mantissa = wide_ ? 52 : 23, bias = wide_ ? 1023 : 127;
    return from_bits(b.CreateShl(b.CreateAdd(whole, integer(bias)), integer(mantissa)));
  }

  /// x * 2^n, also where 2^n or the result is denormal or too large.
  Value* scale(Value* x, Value* n) const {
    if (scale_lanes_)
      return scale_registers(x, n, llvm::Constant::getAllOnesValue(with_lanes_of(b.getInt1Ty(), type_)));
    Value* half = b.CreateUnaryIntrinsic(llvm::Intrinsic::floor, mul(n, number(0.5)));
    return mul(mul(x, power_of_two(half)), power_of_two(sub(n, half)));
  }

  /// The machine's own instruction, register by register; lanes that are not `alive` are 0.
  Value* scale_registers(Value* x, Value* n, Value* alive) const {
    using namespace llvm::Intrinsic;
    const unsigned bytes = scale_lanes_ * (wide_ ? 8 : 4);
    const auto which = bytes == 64   ? (wide_ ? x86_avx512_mask_scalef_pd_512 : x86_avx512_mask_scalef_ps_512)
                       : bytes == 32 ? (wide_ ? x86_avx512_mask_scalef_pd_256 : x86_avx512_mask_scalef_ps_256)
                                     : (wide_ ? x86_avx512_mask_scalef_pd_128 : x86_avx512_mask_scalef_ps_128);
    const unsigned mask_bits = std::max(8U, scale_lanes_);
    llvm::SmallVector<int, 16> widened(mask_bits, static_cast<int>(scale_lanes_));  // a lane of zeros
    std::iota(widened.begin(), widened.begin() + scale_lanes_, 0);
    return by_registers([&](auto part) {
      Value* lanes = part(alive);
      if (mask_bits > scale_lanes_) {
        lanes = b.CreateShuffleVector(lanes, llvm::Constant::getNullValue(lanes->getType()), widened);
      }
      Value* base = part(x);
      llvm::SmallVector<Value*, 5> arguments = {base, part(n), llvm::Constant::getNullValue(base->getType()),
                                                b.CreateBitCast(lanes, b.getIntNTy(mask_bits))};
      constexpr int current_rounding = 4;
      if (bytes == 64) arguments.push_back(b.getInt32(current_rounding));
      return b.CreateIntrinsic(which, {}, arguments);
    });
  }

  /// A vector put together from what `make` gives for each of its registers; `part` is a vector's share in it.
  template <typename Make>
  Value* by_registers(Make make) const {
    const unsigned lanes = llvm::cast<llvm::FixedVectorType>(type_)->getNumElements();
    if (lanes == scale_lanes_) return make([](Value* all) { return all; });
    Value* result = llvm::PoisonValue::get(type_);
    for (unsigned first = 0; first < lanes; first += scale_lanes_) {
      Value* made = make([&](Value* all) -> Value* {
        Type* own = llvm::FixedVectorType::get(all->getType()->getScalarType(), scale_lanes_);
        return b.CreateExtractVector(own, all, b.getInt64(first));
      });
      result = b.CreateInsertVector(type_, result, made, b.getInt64(first));
    }
    return result;
  }

  /// Whether the vector is whole registers of sixteen f32 lanes, which `look_up` needs.
  bool looks_up() const { return !wide_ && scale_lanes_ == 16; }
  /// table[the low four bits of index], in each lane.
  Value* look_up(Value* index, const float (&table)[16]) const {
    Value* row = llvm::ConstantDataVector::get(b.getContext(), llvm::ArrayRef<float>(table));
    return by_registers([&](auto part) {
      return b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_permvar_sf_512, {}, {row, part(index)});
    });
  }

  /// (exp(r) - 1 - r)/r^2 for |r| <= ln(2)/2.
  Value* exp_tail(Value* r) const {
    if (wide_) {
      return polynomial(r,
                        {1.6087177234380782e-10, 2.0918961837795778e-09, 2.5052069594795685e-08, 2.755726102934377e-07,
                         2.7557319248633827e-06, 2.4801587338565345e-05, 0.00019841269841262761, 0.0013888888888878269,
                         0.008333333333333333, 0.04166666666666668, 0.16666666666666666, 0.5});
    }
    return polynomial(r, {1.392692661e-03, 8.363773874e-03, 4.166655011e-02, 1.666657338e-01, 5.000000000e-01});
  }

  /// x == n*ln(2) + r, n an integer.
  std::pair<Value*, Value*> by_ln2(Value* x) const {
    // Adding a number whose last digit is the ones rounds: for |x| below a quarter of it.
    Value* ones = number(wide_ ? 0x1.8p52 : 0x1.8p23);
    Value* n = sub(fma(x, number(1.4426950408889634), ones), ones);
    Value* r = fma(n, number(wide_ ? -0x1.62e42fee00000p-1 : -0.693359375), x);
    r = fma(n, number(wide_ ? -0x1.a39ef35793c76p-33 : 0.00021219444170128554), r);
    return {n, r};
  }

  Value* exp(Value* x) const {
    // Beyond these the result is 0 or infinity anyway, and 2^n stays in reach of `scale`. What masks have hidden (-1e9,
    // -inf) is not computed: numbers that underflow take a hundred times as long as others.
    const double low = wide_ ? -746 : -104, high = wide_ ? 710 : 89;
    if (looks_up()) return exp_by_table(x);
    if (scale_lanes_) {  // NaN goes through all of it
      const auto [n, r] = by_ln2(select(b.CreateFCmpOLT(number(high), x), number(high), x));
      Value* result = fma(r, fma(r, exp_tail(r), number(1)), number(1));
      return scale_registers(result, n, b.CreateFCmpUGT(x, number(low)));
    }
    Value* hidden = b.CreateFCmpOLT(x, number(low));
    const auto [n, r] = by_ln2(select(hidden, number(0), clamp(x, low, high)));
    Value* result = scale(add(fma(mul(r, r), exp_tail(r), r), number(1)), n);
    return select(hidden, number(0), select(is_nan(x), x, result));
  }

  /// x == n*ln(2) + r with n in sixteenths: 2^n is looked up but for its whole part, which the machine's own
  /// instruction takes from n, and r is so small that two coefficients do (0.77 units in the last place at most). NaN
  /// goes through.
  Value* exp_by_table(Value* x) const {
    Value* inside = select(b.CreateFCmpOLT(number(89), x), number(89), x);
    Value* sixteenths = number(0x1.8p19);  // adding it leaves n's sixteenths in the four last bits
    Value* sum = fma(inside, number(1.4426950408889634), sixteenths);
    Value* n = sub(sum, sixteenths);
    Value* r = fma(n, number(-0.693359375), inside);
    r = fma(n, number(0.00021219444170128554), r);
    Value* index = b.CreateBitCast(sum, int_type());
    Value* power = look_up(index, kSixteenthPowers);
    Value* p = polynomial(r, {0.16667057573795319, 0.5000162124633789, 1});
    return scale_registers(fma(fma(power, r, look_up(index, kSixteenthRests)), p, power), n,
                           b.CreateFCmpUGT(x, number(-104)));
  }

  Value* exp2(Value* x) const {
    Value* inside = wide_ ? clamp(x, -1076, 1025) : clamp(x, -151, 129);
    Value* n = round(inside);
    // ln(2) in two parts, so that the product's rounding does not show.
    Value* f = sub(inside, n);
    Value* r = mul(f, number(0.6931471805599453));
    if (wide_) r = fma(f, number(2.3190468138462996e-17), r);
    Value* result = scale(add(fma(mul(r, r), exp_tail(r), r), number(1)), n);
    return select(is_nan(x), x, result);
  }

  Value* expm1(Value* x) const {
    Value* inside = wide_ ? clamp(x, -40, 710) : clamp(x, -18, 89);
    const auto [n, r] = by_ln2(inside);
    Value* p = fma(mul(r, r), exp_tail(r), r);
    // (p + 1)*2^n - 1, by halves so that 2^n is finite.
    Value* half = power_of_two(sub(n, number(1)));
    Value* result = mul(fma(half, p, sub(half, number(0.5))), number(2));
    result = select(b.CreateFCmpOEQ(n, number(0)), p, result);
    // Denormals and -0 are their own result; so is NaN.
    Value* tiny = b.CreateFCmpOLT(abs(x), number(wide_ ? 1e-300 : 1e-30));
    return select(b.CreateOr(tiny, is_nan(x)), x, result);
  }

  struct Split {
    Value* exponent;
    Value* fraction;  // in [sqrt(1/2) - 1, sqrt(2) - 1]
  };
  /// A positive finite x == 2^exponent * (1 + fraction).
  Split split(Value* x) const {
    const int mantissa = wide_ ? 52 : 23;
    // Denormals are scaled into the normal range first.
    Value* small = b.CreateFCmpOLT(x, number(wide_ ? 0x1p-1022 : 0x1p-126));
    x = select(small, mul(x, number(wide_ ? 0x1p54 : 0x1p25)), x);
    Value* word = bits(x);
    // The bits of sqrt(1/2): below it the exponent steps.
    Value* offset = b.CreateSub(word, integer(wide_ ? 0x3FE6A09E667F3BCD : 0x3F3504F3));
    Value* exponent = b.CreateAShr(offset, integer(mantissa));
    Value* m = from_bits(b.CreateSub(word, b.CreateShl(exponent, integer(mantissa))));
    Value* e = b.CreateSIToFP(exponent, type_);
    e = sub(e, select(small, number(wide_ ? 54 : 25), number(0)));
    return {e, sub(m, number(1))};
  }

  /// log(1 + f) == f + result.
  Value* log_tail(Value* f) const {
    if (wide_) {
      Value* s = div(f, add(f, number(2)));
      Value* z = mul(s, s);
      Value* tail =
          mul(z, polynomial(z, {0.13088193319166916, 0.13268623200325125, 0.15386245304628174, 0.18181795537085654,
                                0.22222222392678806, 0.2857142857079935, 0.40000000000000885, 0.6666666666666666}));
      Value* half = mul(mul(f, f), number(0.5));
      return sub(mul(s, add(half, tail)), half);
    }
    Value* g = polynomial(f, {6.972518634e-02, -1.148121206e-01, 1.168578472e-01, -1.242552336e-01, 1.424900724e-01,
                              -1.666780713e-01, 2.000071721e-01, -2.499999693e-01, 3.333333117e-01});
    Value* square = mul(f, f);
    return mul(square, fma(f, g, number(-0.5)));
  }

  /// log's results outside (0, infinity).
  Value* log_special(Value* x, Value* result) const {
    result = select(b.CreateFCmpOEQ(x, number(kInfinity)), x, result);
    result = select(b.CreateFCmpOEQ(x, number(0)), number(-kInfinity), result);
    return select(b.CreateFCmpULT(x, number(0)), select(is_nan(x), x, number(kNan)), result);
  }

  Value* log(Value* x) const { return log_special(x, log_of(split(x))); }
  Value* log_of(Split parts) const {
    const auto [e, f] = parts;
    Value* tail = log_tail(f);
    Value* low = wide_ ? number(0x1.a39ef35793c76p-33) : number(-0.00021219444170128554);
    Value* high = wide_ ? number(0x1.62e42fee00000p-1) : number(0.693359375);
    return fma(e, high, add(f, fma(e, low, tail)));
  }

  /// e*unit + log(1 + f)*factor, all numbers in two parts.
  Value* log_scaled(Value* x, double unit_high, double unit_low, double factor, double factor_low) const {
    const auto [e, f] = split(x);
    Value* tail = log_tail(f);
    Value* head = mul(f, number(factor));
    Value* rest = fma(f, number(factor), neg(head));  // what rounding the head lost
    rest = fma(f, number(factor_low), rest);
    rest = fma(tail, number(factor), rest);
    rest = fma(e, number(unit_low), rest);
    return log_special(x, fma(e, number(unit_high), add(head, rest)));
  }
  Value* log2(Value* x) const {
    return wide_ ? log_scaled(x, 1, 0, 1.4426950408889634, 2.0355273740931033e-17)
                 : log_scaled(x, 1, 0, 1.4426950216293335, 1.925963033500011e-08);
  }
  Value* log10(Value* x) const {
    return wide_ ? log_scaled(x, 0x1.34413509f6000p-2, 3.694239077158931e-13, 0.4342944819032518, 1.098319650216765e-17)
                 : log_scaled(x, 0.30078125, 0.00024874566588550806, 0.4342944920063019, -1.0103049952192578e-08);
  }

  Value* log1p(Value* x) const {
    // log(u) for the rounded u = 1 + x, and what rounding lost, relative to u.
    Value* u = add(number(1), x);
    Value* lost = sub(x, sub(u, number(1)));
    // Where x is the greater part, 1 is what loses digits.
    Value* large = b.CreateFCmpOGT(x, number(1));
    lost = select(large, sub(number(1), sub(u, x)), lost);
    Value* result = add(log_of(split(u)), div(lost, u));
    result = log_special(u, result);
    Value* tiny = b.CreateFCmpOLT(abs(x), number(wide_ ? 1e-17 : 1e-8));
    return select(tiny, x, result);
  }

  Value* sigmoid(Value* x) const {
    Value* z = exp(neg(abs(x)));
    Value* top = select(b.CreateFCmpOLT(x, number(0)), z, number(1));
    return div(top, add(number(1), z));  // NaN comes out of exp
  }

  Value* tanh(Value* x) const {
    Value* a = abs(x);
    Value* z = mul(x, x);
    Value* p = polynomial(
        z, {2.269501684e-03, -8.323187058e-03, 2.176250291e-02, -5.395846163e-02, 1.333330015e-01, -3.333333315e-01});
    Value* small = fma(mul(x, z), p, x);
    Value* big = sub(number(1), div(number(2), add(exp(add(a, a)), number(1))));
    return copysign(select(b.CreateFCmpOLT(a, number(0.625)), small, big), x);
  }

  Value* erf_by_table(Value* x) const {
    Value* a = abs(x);
    a = select(b.CreateFCmpOLT(number(kErfEnd), a), number(kErfEnd), a);  // NaN stays
    // Rounds to an integer, which then is in the low bits.
    constexpr double integers = 0x1.8p23;
    Value* k = fma(a, number(1 / kErfStep), number(integers));
    Value* t = fma(sub(k, number(integers)), number(-kErfStep), a);
    Value* index = bits(k);
    Value* rest = look_up(index, kErfRows[0]);
    for (size_t row = 1; row < std::size(kErfRows); ++row) rest = fma(rest, t, look_up(index, kErfRows[row]));
    Value* result = fma(a, rest, mul(a, look_up(index, kErfPowers)));
    result = select(b.CreateFCmpOLT(number(1), result), number(1), result);
    return copysign(result, x);
  }

  Value* erf(Value* x) const {
    if (looks_up()) return erf_by_table(x);
    Value* a = abs(x);
    Value* p = polynomial(mul(x, x), {8.347686559e-05, -8.137793761e-04, 5.200641545e-03, -2.685926176e-02,
                                      1.128369351e-01, -3.761263365e-01, 1.283791666e-01});
    Value* small = fma(p, x, x);
    // erfc(a) = exp(-a + a*q(a))
    Value* inside = clamp(a, 0, 4.1);
    Value* q =
        polynomial(inside, {2.231732541e-07, -3.443915345e-06, 4.051715536e-06, 3.163990723e-04, -3.780389619e-03,
                            2.421256110e-02, -1.068686493e-01, -6.347244700e-01, -1.287617472e-01});
    Value* big = sub(number(1), exp(fma(q, inside, neg(inside))));
    big = select(is_nan(x), x, copysign(big, x));
    return select(b.CreateFCmpOLT(a, number(0.9277)), small, big);
  }

  Value* atan(Value* x) const {
    Value* a = abs(x);
    Value* large = b.CreateFCmpOGT(a, number(1));
    Value* t = select(large, div(number(1), a), a);
    Value* z = mul(t, t);
    Value* p = polynomial(z, {1.488691939e-03, -9.144629761e-03, 2.630500111e-02, -4.896051403e-02, 7.031914250e-02,
                              -8.931826777e-02, 1.108826163e-01, -1.428400379e-01, 1.999994932e-01, -3.333333308e-01});
    Value* r = fma(mul(t, z), p, t);
    Value* turned = add(sub(number(1.5707963705062866), r), number(-4.371138828673793e-08));
    return copysign(select(large, turned, r), x);
  }

  /// asin of |x| <= 1/2 by z = x^2.
  Value* asin_small(Value* x, Value* z) const {
    Value* p = polynomial(
        z, {3.369084720e-02, 1.714923836e-02, 3.110066274e-02, 4.459940153e-02, 7.500094543e-02, 1.666666634e-01});
    return fma(mul(x, z), p, x);
  }
  Value* asin(Value* x) const {
    Value* a = abs(x);
    Value* large = b.CreateFCmpOGT(a, number(0.5));
    Value* z = select(large, mul(sub(number(1), a), number(0.5)), mul(a, a));
    Value* t = select(large, sqrt(z), a);
    Value* r = asin_small(t, z);
    Value* turned = add(fma(r, number(-2), number(1.5707963705062866)), number(-4.371138828673793e-08));
    return copysign(select(large, turned, r), x);
  }
  Value* acos(Value* x) const {
    Value* a = abs(x);
    Value* large = b.CreateFCmpOGT(a, number(0.5));
    Value* z = select(large, mul(sub(number(1), a), number(0.5)), mul(a, a));
    Value* t = select(large, sqrt(z), a);
    Value* r = asin_small(t, z);
    Value* negative = b.CreateFCmpOLT(x, number(0));
    Value* doubled = add(r, r);
    Value* far =
        select(negative, add(sub(number(3.1415927410125732), doubled), number(-8.742277657347586e-08)), doubled);
    Value* near = add(sub(number(1.5707963705062866), copysign(r, x)), number(-4.371138828673793e-08));
    return select(large, far, near);
  }

  IRBuilder<>& b;

 private:
  Type* type_;
  bool wide_;
  /// Lanes of the registers that are scaled by one instruction; 0: there is none.
  unsigned scale_lanes_ = 0;
};

/// Of f64.
Value* wide_tanh(const Math& m, Value* x);
Value* wide_erf(const Math& m, Value* x);
/// sin (0) or cos (1) of what is below 2^30.
Value* wide_sine(const Math& m, Value* x, int quarters);

}  // namespace magneto::codegen
