// The polynomials are Chebyshev fits of the function named beside them on the reduced range, highest power first.
#include "codegen/llvm/vector_math.h"

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Module.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <numeric>

#include "codegen/llvm/approximations.h"

namespace magneto::codegen {

using llvm::IRBuilder;
using llvm::Type;
using llvm::Value;
using loops::Op;

Type* with_lanes_of(Type* type, Type* like) {
  if (const auto* vector = llvm::dyn_cast<llvm::VectorType>(like)) {
    return llvm::VectorType::get(type, vector->getElementCount());
  }
  return type;
}

namespace {

/// sin and cos of an f32 below 2^30, reduced in f64: exact enough that no cancellation shows.
Value* sine(IRBuilder<>& b, Value* x, int quarters) {
  Math m(b, x);
  if (m.wide()) return wide_sine(m, x, quarters);
  Value* wide = b.CreateFPExt(x, with_lanes_of(b.getDoubleTy(), x->getType()));
  Math d(b, wide);
  Value* n = d.round(d.mul(wide, d.number(0x1.45f306dc9c883p-1)));
  Value* r = d.fma(n, d.number(-0x1.921fb54442d18p+0), wide);
  r = d.fma(n, d.number(-0x1.1a62633145c07p-54), r);
  Value* t = b.CreateFPTrunc(r, x->getType());
  Value* quadrant = b.CreateTrunc(b.CreateFreeze(b.CreateFPToSI(n, d.int_type())), m.int_type());
  quadrant = b.CreateAdd(quadrant, m.integer(quarters));
  Value* z = m.mul(t, t);
  Value* sin_value =
      m.fma(m.mul(t, z), m.polynomial(z, {2.724990116e-06, -1.984008655e-04, 8.333331874e-03, -1.666666666e-01}), t);
  Value* cos_value =
      m.fma(m.mul(z, z), m.polynomial(z, {-2.730093863e-07, 2.480060022e-05, -1.388888767e-03, 4.166666666e-02}),
            m.fma(z, m.number(-0.5), m.number(1)));
  Value* odd = b.CreateICmpNE(b.CreateAnd(quadrant, m.integer(1)), m.integer(0));
  Value* result = m.select(odd, cos_value, sin_value);
  Value* flip = b.CreateShl(b.CreateAnd(quadrant, m.integer(2)), m.integer(30));
  result = m.from_bits(b.CreateXor(m.bits(result), flip));
  if (quarters) return result;
  return m.select(b.CreateFCmpOLT(m.abs(x), m.number(1e-4)), x, result);  // -0 and denormals are their own sines
}

/// sin (0) or cos (1). Arguments from 2^30 on go to the C library, if there are any.
Value* sine_or_library(IRBuilder<>& b, Value* x, int quarters) {
  Math m(b, x);
  // An infinity times zero is NaN, as wanted, and takes no call.
  Value* is_large = b.CreateFCmpOGE(m.abs(x), m.number(0x1p30));
  Value* infinite = b.CreateFCmpOEQ(m.abs(x), m.number(kInfinity));
  Value* inside = m.select(is_large, m.number(0), x);
  Value* result = sine(b, inside, quarters);
  Value* call = b.CreateAnd(is_large, b.CreateNot(infinite));
  Value* any = call->getType()->isVectorTy() ? b.CreateOrReduce(call) : call;
  llvm::Function* function = b.GetInsertBlock()->getParent();
  auto* before = b.GetInsertBlock();
  auto* slow = llvm::BasicBlock::Create(b.getContext(), "large", function);
  auto* after = llvm::BasicBlock::Create(b.getContext(), "reduced", function);
  b.CreateCondBr(any, slow, after);
  b.SetInsertPoint(slow);
  Value* called = emit_library_call(b, quarters ? "cos" : "sin", &x, 1);
  auto* slow_end = b.GetInsertBlock();
  b.CreateBr(after);
  b.SetInsertPoint(after);
  llvm::PHINode* phi = b.CreatePHI(x->getType(), 2);
  phi->addIncoming(result, before);
  phi->addIncoming(called, slow_end);
  Value* joined = m.select(call, phi, result);
  return m.select(infinite, m.number(kNan), joined);
}

/// pow of f32 through f64: the product's error stays far below f32's half unit.
Value* power(IRBuilder<>& b, Value* x, Value* y) {
  Math m(b, x);
  Type* wide_type = with_lanes_of(b.getDoubleTy(), x->getType());
  Value* a = b.CreateFPExt(m.abs(x), wide_type);
  Value* exponent = b.CreateFPExt(y, wide_type);
  Math d(b, a);
  Value* size = b.CreateFPTrunc(exp(d, d.mul(exponent, log(d, a))), x->getType());
  Value* whole = b.CreateFCmpOEQ(b.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, y), y);
  Value* half = m.mul(y, m.number(0.5));
  Value* odd = b.CreateAnd(whole, b.CreateFCmpONE(b.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, half), half));
  Value* negative = b.CreateICmpSLT(m.bits(x), m.integer(0));
  Value* result = m.select(b.CreateAnd(negative, odd), m.neg(size), size);
  // A negative finite base has a power only for whole exponents.
  Value* finite = b.CreateFCmpOLT(m.abs(x), m.number(kInfinity));
  Value* no_power = b.CreateAnd(b.CreateAnd(b.CreateFCmpOLT(x, m.number(0)), finite), b.CreateNot(whole));
  result = m.select(no_power, m.number(kNan), result);
  result = m.select(b.CreateOr(m.is_nan(x), m.is_nan(y)), m.add(x, y), result);
  // (+-1)^infinity, 1^anything and anything^0 are 1, of NaN too.
  Value* unit = b.CreateFCmpOEQ(m.abs(x), m.number(1));
  Value* endless = b.CreateFCmpOEQ(m.abs(y), m.number(kInfinity));
  Value* one = b.CreateOr(b.CreateAnd(unit, endless),
                          b.CreateOr(b.CreateFCmpOEQ(x, m.number(1)), b.CreateFCmpOEQ(y, m.number(0))));
  return m.select(one, m.number(1), result);
}

Value* floor_modulo(IRBuilder<>& b, Op op, Value* x, Value* y) {
  Math m(b, x);
  Value* operands[2] = {x, y};
  Value* rest = emit_library_call(b, "fmod", operands, 2);
  Value* zero = m.number(0);
  Value* apart =
      b.CreateAnd(b.CreateFCmpUNE(rest, zero), b.CreateXor(b.CreateFCmpOLT(y, zero), b.CreateFCmpOLT(rest, zero)));
  if (op == Op::Mod) return m.select(apart, m.add(rest, y), rest);
  Value* quotient = m.div(m.sub(x, rest), y);
  quotient = m.select(apart, m.sub(quotient, m.number(1)), quotient);
  Value* floor = b.CreateUnaryIntrinsic(llvm::Intrinsic::floor, quotient);
  floor = m.select(b.CreateFCmpOGT(m.sub(quotient, floor), m.number(0.5)), m.add(floor, m.number(1)), floor);
  Value* plain = m.div(x, y);
  floor = m.select(b.CreateFCmpOEQ(quotient, zero), m.copysign(zero, plain), floor);
  return m.select(b.CreateFCmpOEQ(y, zero), plain, floor);
}

/// The C library's name of a function that has no vector form of its own for this type.
const char* library_name(Op op, bool wide) {
  switch (op) {
    case Op::Tan:
      return "tan";
    case Op::Sinh:
      return "sinh";
    case Op::Cosh:
      return "cosh";
    case Op::Asinh:
      return "asinh";
    case Op::Acosh:
      return "acosh";
    case Op::Atanh:
      return "atanh";
    case Op::Lgamma:
      return "lgamma";
    case Op::Erfc:
      return "erfc";
    case Op::Atan2:
      return "atan2";
    case Op::Fmod:
      return "fmod";
    default:
      break;
  }
  if (!wide) return nullptr;
  switch (op) {
    case Op::Asin:
      return "asin";
    case Op::Acos:
      return "acos";
    case Op::Atan:
      return "atan";
    case Op::Pow:
      return "pow";
    default:
      return nullptr;
  }
}

}  // namespace

Value* emit_library_call(IRBuilder<>& b, const char* name, Value* const* operands, int count) {
  Type* type = operands[0]->getType();
  Type* scalar = type->getScalarType();
  llvm::Module* module = b.GetInsertBlock()->getModule();
  const std::string symbol = std::string(name) + (scalar->isDoubleTy() ? "" : "f");
  const std::vector<Type*> parameters(static_cast<size_t>(count), scalar);
  llvm::FunctionCallee callee = module->getOrInsertFunction(symbol, llvm::FunctionType::get(scalar, parameters, false));
  auto* function = llvm::cast<llvm::Function>(callee.getCallee());
  function->setDoesNotThrow();
  function->setDoesNotAccessMemory();
  if (!type->isVectorTy()) {
    return b.CreateCall(callee, llvm::ArrayRef<Value*>(operands, static_cast<size_t>(count)));
  }
  // Through memory, in a loop: a vector unrolled would be a page of code for each call.
  const auto lanes = llvm::cast<llvm::FixedVectorType>(type)->getNumElements();
  llvm::Function* self = b.GetInsertBlock()->getParent();
  IRBuilder<> entry(&self->getEntryBlock(), self->getEntryBlock().begin());
  std::vector<Value*> slots;
  for (int i = 0; i < count; ++i) {
    slots.push_back(entry.CreateAlloca(type));
    b.CreateStore(operands[i], slots.back());
  }
  auto* before = b.GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(b.getContext(), "call", self);
  auto* after = llvm::BasicBlock::Create(b.getContext(), "called", self);
  b.CreateBr(loop);
  b.SetInsertPoint(loop);
  llvm::PHINode* lane = b.CreatePHI(b.getInt64Ty(), 2);
  lane->addIncoming(b.getInt64(0), before);
  std::vector<Value*> arguments;
  for (Value* slot : slots) arguments.push_back(b.CreateLoad(scalar, b.CreateGEP(scalar, slot, lane)));
  Value* result = b.CreateCall(callee, arguments);
  b.CreateStore(result, b.CreateGEP(scalar, slots[0], lane));
  Value* next = b.CreateAdd(lane, b.getInt64(1));
  lane->addIncoming(next, loop);
  b.CreateCondBr(b.CreateICmpULT(next, b.getInt64(lanes)), loop, after);
  b.SetInsertPoint(after);
  return b.CreateLoad(type, slots[0]);
}

Value* emit_to_bf16(IRBuilder<>& b, Value* value) {
  Math m(b, value);
  Value* word = m.bits(value);
  Value* odd = b.CreateAnd(b.CreateLShr(word, m.integer(16)), m.integer(1));
  Value* rounded = b.CreateLShr(b.CreateAdd(word, b.CreateAdd(odd, m.integer(0x7FFF))), m.integer(16));
  rounded = b.CreateSelect(m.is_nan(value), m.integer(0x7FC0), rounded);
  return b.CreateTrunc(rounded, with_lanes_of(b.getInt16Ty(), value->getType()));
}

Value* emit_from_bf16(IRBuilder<>& b, Value* bits) {
  Type* words = with_lanes_of(b.getInt32Ty(), bits->getType());
  Value* word = b.CreateShl(b.CreateZExt(bits, words), llvm::ConstantInt::get(words, 16));
  return b.CreateBitCast(word, with_lanes_of(b.getFloatTy(), bits->getType()));
}

Value* emit_to_f16(IRBuilder<>& b, Value* value) {
  Value* half = b.CreateFPTrunc(value, with_lanes_of(b.getHalfTy(), value->getType()));
  return b.CreateBitCast(half, with_lanes_of(b.getInt16Ty(), value->getType()));
}

Value* emit_from_f16(IRBuilder<>& b, Value* bits) {
  Value* half = b.CreateBitCast(bits, with_lanes_of(b.getHalfTy(), bits->getType()));
  return b.CreateFPExt(half, with_lanes_of(b.getFloatTy(), bits->getType()));
}

Value* emit_float_math(IRBuilder<>& b, Op op, Value* const* operands) {
  Value* x = operands[0];
  Value* y = loops::facts(op).operands > 1 ? operands[1] : nullptr;
  const Math m(b, x);
  if (const char* name = library_name(op, m.wide()))
    return emit_library_call(b, name, operands, loops::facts(op).operands);
  switch (op) {
    case Op::RoundBF16:
      return emit_from_bf16(b, emit_to_bf16(b, x));
    case Op::RoundF16:
      return emit_from_f16(b, emit_to_f16(b, x));
    case Op::Neg:
      return m.neg(x);
    case Op::Abs:
      return m.abs(x);
    case Op::Sign: {
      Value* up = m.select(b.CreateFCmpOGT(x, m.number(0)), m.number(1), m.number(0));
      return m.select(b.CreateFCmpOLT(x, m.number(0)), m.number(-1), up);
    }
    case Op::Floor:
      return b.CreateUnaryIntrinsic(llvm::Intrinsic::floor, x);
    case Op::Ceil:
      return b.CreateUnaryIntrinsic(llvm::Intrinsic::ceil, x);
    case Op::Trunc:
      return b.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, x);
    case Op::Round:
      return m.round(x);
    case Op::Sqrt:
      return m.sqrt(x);
    case Op::Rsqrt:
      return m.div(m.number(1), m.sqrt(x));
    case Op::Reciprocal:
      return m.div(m.number(1), x);
    case Op::Exp:
      return exp(m, x);
    case Op::Exp2:
      return exp2(m, x);
    case Op::Expm1:
      return expm1(m, x);
    case Op::Log:
      return log(m, x);
    case Op::Log2:
      return log2(m, x);
    case Op::Log10:
      return log10(m, x);
    case Op::Log1p:
      return log1p(m, x);
    case Op::Sigmoid:
      return sigmoid(m, x);
    case Op::Tanh:
      return m.wide() ? wide_tanh(m, x) : tanh(m, x);
    case Op::Erf:
      return m.wide() ? wide_erf(m, x) : erf(m, x);
    case Op::Sin:
      return sine_or_library(b, x, 0);
    case Op::Cos:
      return sine_or_library(b, x, 1);
    case Op::Atan:
      return atan(m, x);
    case Op::Asin:
      return asin(m, x);
    case Op::Acos:
      return acos(m, x);
    case Op::Add:
      return m.add(x, y);
    case Op::Sub:
      return m.sub(x, y);
    case Op::Mul:
      return m.mul(x, y);
    case Op::Div:
      return m.div(x, y);
    case Op::FloorDiv:
    case Op::Mod:
      return floor_modulo(b, op, x, y);
    case Op::Min:
      return m.select(b.CreateOr(b.CreateFCmpOGT(x, y), m.is_nan(y)), y, x);
    case Op::Max:
      return m.select(b.CreateOr(b.CreateFCmpOLT(x, y), m.is_nan(y)), y, x);
    case Op::Pow:
      return power(b, x, y);
    case Op::Copysign:
      return m.copysign(x, y);
    case Op::ErfFrom:
      return m.wide() ? wide_erf(m, x) : erf_from(m, x, y);
    case Op::Fma:
      return m.fma(x, y, operands[2]);
    default:
      return llvm::PoisonValue::get(x->getType());
  }
}

}  // namespace magneto::codegen
