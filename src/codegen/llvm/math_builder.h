// The code of functions in the making: LLVM's builder under the names of arithmetic, for f32 and f64, and what machines
// with AVX-512 have for it. The functions themselves: approximations.h.
#pragma once

#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <limits>
#include <numeric>

#include "codegen/llvm/vector_math.h"

namespace magneto::codegen {

using llvm::IRBuilder;
using llvm::Type;
using llvm::Value;

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
  Type* type() const { return type_; }
  /// Whether one instruction multiplies a register by powers of two.
  bool scales() const { return scale_lanes_ != 0; }
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

  /// The lesser of the two; NaN stays.
  Value* at_most(Value* x, double limit) const { return select(b.CreateFCmpOLT(number(limit), x), number(limit), x); }

  Value* polynomial(Value* x, std::initializer_list<double> coefficients) const {
    Value* result = nullptr;
    for (const double coefficient : coefficients) {
      result = result ? fma(result, x, number(coefficient)) : number(coefficient);
    }
    return result;
  }

  Value* is_nan(Value* x) const { return b.CreateFCmpUNO(x, x); }

  /// 2^n for n (an integer in a float) within the normal exponents.
  Value* power_of_two(Value* n) const { return power_in_bits(b.CreateFPToSI(n, int_type())); }
  /// The same for an integer of which the low bits alone count: nine for f32, twelve for f64.
  Value* power_in_bits(Value* n) const {
    const int mantissa = wide_ ? 52 : 23, bias = wide_ ? 1023 : 127;
    return from_bits(b.CreateShl(b.CreateAdd(n, integer(bias)), integer(mantissa)));
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

  /// Whether the vector is whole registers of sixteen f32 lanes, which `look_up` needs.
  bool looks_up() const { return !wide_ && scale_lanes_ == 16; }
  /// table[the low four bits of index], in each lane.
  Value* look_up(Value* index, const float (&table)[16]) const {
    Value* row = llvm::ConstantDataVector::get(b.getContext(), llvm::ArrayRef<float>(table));
    return by_registers([&](auto part) {
      return b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_permvar_sf_512, {}, {row, part(index)});
    });
  }

  IRBuilder<>& b;

 private:
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

  Type* type_;
  bool wide_;
  /// Lanes of the registers that are scaled by one instruction; 0: there is none.
  unsigned scale_lanes_ = 0;
};

}  // namespace magneto::codegen
