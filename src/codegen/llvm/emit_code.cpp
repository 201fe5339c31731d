// Instructions that touch no memory.
#include <llvm/IR/DebugInfoMetadata.h>

#include "codegen/llvm/emitter.h"
#include "codegen/llvm/vector_math.h"

namespace magneto::codegen {

using llvm::BasicBlock;
using loops::Dtype;
using loops::Instruction;
using loops::Op;
using loops::OpClass;

void Emitter::emit_instruction(const Instruction& instruction) {
  if (!locations_) return emit_code(instruction);
  const llvm::DebugLoc outer = b.getCurrentDebugLocation();
  const loops::ValueId value = instruction.result != loops::kNoValue ? instruction.result : instruction.operands[0];
  b.SetCurrentDebugLocation(llvm::DILocation::get(context_, value + 1, 0, function_->getSubprogram()));
  emit_code(instruction);
  b.SetCurrentDebugLocation(outer);
}

void Emitter::emit_code(const Instruction& instruction) {
  const auto& operands = instruction.operands;
  switch (loops::facts(instruction.op).op_class) {
    case OpClass::Math:
    case OpClass::Compare:
      return emit_math(instruction);
    case OpClass::Reduce:
      return emit_reduce(instruction);
    case OpClass::Scan:
      return emit_scan(instruction);
    case OpClass::Special:
      break;
  }
  switch (instruction.op) {
    case Op::Constant:
      return set(instruction.result, constant(instruction), false);
    case Op::Index:
      values_[instruction.result].reg = expression(instruction.index);
      return;
    case Op::Load:
      return emit_load(instruction);
    case Op::Store:
    case Op::StoreAdd:
      return emit_store(instruction);
    case Op::Cast: {
      const Register from = get(operands[0]);
      return set(instruction.result, cast(dtype_of(operands[0]), instruction.dtype, from.value), from.varying);
    }
    case Op::Bounds:
      return emit_bounds(instruction);
    case Op::Select: {
      const Register condition = get(operands[0]), x = get(operands[1]), y = get(operands[2]);
      const bool varying = condition.varying || x.varying || y.varying;
      if (!varying) return set(instruction.result, b.CreateSelect(condition.value, x.value, y.value), false);
      // A condition that is the same for all lanes stays a scalar.
      return set(instruction.result, b.CreateSelect(condition.value, broadcast(x), broadcast(y)), true);
    }
    case Op::WelfordM2: {
      const Reduction& reduction = values_[operands[0]].reduction;
      return set(instruction.result, reduction.welford[1], reduction.welford_varies);
    }
    default:
      return;
  }
}

llvm::Value* Emitter::constant(const Instruction& instruction) {
  Type* type = type_of(instruction.dtype);
  if (loops::is_float(instruction.dtype)) return llvm::ConstantFP::get(type, instruction.number);
  return llvm::ConstantInt::get(type, static_cast<uint64_t>(instruction.integer), true);
}

void Emitter::emit_math(const Instruction& instruction) {
  const int count = loops::facts(instruction.op).operands;
  bool varying = false;
  for (int i = 0; i < count; ++i) varying |= get(instruction.operands[i]).varying;
  Value* operands[3] = {};
  for (int i = 0; i < count; ++i) {
    const Register reg = get(instruction.operands[i]);
    operands[i] = varying ? broadcast(reg) : reg.value;
  }
  const Dtype dtype = dtype_of(instruction.operands[0]);
  Value* result = nullptr;
  if (loops::facts(instruction.op).op_class == OpClass::Compare) {
    result = compare(instruction.op, dtype, operands[0], operands[1]);
  } else if (loops::is_float(dtype)) {
    result = emit_float_math(b, instruction.op, operands);
  } else {
    result = integer_math(instruction.op, dtype, operands);
  }
  set(instruction.result, result, varying);
}

llvm::Value* Emitter::compare(Op op, Dtype dtype, Value* x, Value* y) {
  using P = llvm::CmpInst::Predicate;
  struct Row {
    P real, with_sign, without_sign;
  };
  // In the order of the table: eq, ne, lt, le, gt, ge.
  static constexpr Row kRows[] = {
      {P::FCMP_OEQ, P::ICMP_EQ, P::ICMP_EQ},   {P::FCMP_UNE, P::ICMP_NE, P::ICMP_NE},
      {P::FCMP_OLT, P::ICMP_SLT, P::ICMP_ULT}, {P::FCMP_OLE, P::ICMP_SLE, P::ICMP_ULE},
      {P::FCMP_OGT, P::ICMP_SGT, P::ICMP_UGT}, {P::FCMP_OGE, P::ICMP_SGE, P::ICMP_UGE},
  };
  const Row& row = kRows[static_cast<int>(op) - static_cast<int>(Op::Eq)];
  if (loops::is_float(dtype)) return b.CreateFCmp(row.real, x, y);
  const bool unsigned_type = dtype == Dtype::U8 || dtype == Dtype::Bool;
  return b.CreateICmp(unsigned_type ? row.without_sign : row.with_sign, x, y);
}

llvm::Value* Emitter::integer_math(Op op, Dtype dtype, Value* const* operands) {
  Value* x = operands[0];
  Value* y = loops::facts(op).operands > 1 ? operands[1] : nullptr;
  Type* type = x->getType();
  const bool is_unsigned = dtype == Dtype::U8;
  const auto number = [&](int64_t value) { return llvm::ConstantInt::get(type, static_cast<uint64_t>(value), true); };
  Value* zero = number(0);
  const int64_t bits = loops::dtype_bytes(dtype) * 8;
  switch (op) {
    case Op::Neg:
      return b.CreateNeg(x);
    case Op::Abs:
      return is_unsigned ? x : b.CreateBinaryIntrinsic(llvm::Intrinsic::abs, x, b.getFalse());
    case Op::Sign: {
      Value* up = b.CreateZExt(is_unsigned ? b.CreateICmpNE(x, zero) : b.CreateICmpSGT(x, zero), type);
      return is_unsigned ? up : b.CreateSub(up, b.CreateZExt(b.CreateICmpSLT(x, zero), type));
    }
    case Op::Not:
      return b.CreateNot(x);
    case Op::Add:
      return b.CreateAdd(x, y);
    case Op::Sub:
      return b.CreateSub(x, y);
    case Op::Mul:
      return b.CreateMul(x, y);
    case Op::Min:
      return b.CreateBinaryIntrinsic(is_unsigned ? llvm::Intrinsic::umin : llvm::Intrinsic::smin, x, y);
    case Op::Max:
      return b.CreateBinaryIntrinsic(is_unsigned ? llvm::Intrinsic::umax : llvm::Intrinsic::smax, x, y);
    case Op::And:
      return b.CreateAnd(x, y);
    case Op::Or:
      return b.CreateOr(x, y);
    case Op::Xor:
      return b.CreateXor(x, y);
    case Op::Shl:
    case Op::Shr: {
      Value* inside = b.CreateICmpULT(y, number(bits));
      Value* by = b.CreateSelect(inside, y, zero);
      if (op == Op::Shl) return b.CreateSelect(inside, b.CreateShl(x, by), zero);
      if (is_unsigned) return b.CreateSelect(inside, b.CreateLShr(x, by), zero);
      return b.CreateAShr(x, b.CreateSelect(inside, y, number(bits - 1)));
    }
    case Op::Div:
    case Op::FloorDiv:
    case Op::Mod:
    case Op::Fmod: {
      // Divisors that the machine would fault on are handled beside the division.
      Value* none = b.CreateICmpEQ(y, zero);
      if (is_unsigned) {
        Value* divisor = b.CreateSelect(none, number(1), y);
        Value* result = op == Op::Div || op == Op::FloorDiv ? b.CreateUDiv(x, divisor) : b.CreateURem(x, divisor);
        return b.CreateSelect(none, zero, result);
      }
      Value* minus = b.CreateICmpEQ(y, number(-1));
      Value* special = b.CreateOr(none, minus);
      Value* divisor = b.CreateSelect(special, number(1), y);
      Value* quotient = b.CreateSDiv(x, divisor);
      Value* rest = b.CreateSub(x, b.CreateMul(quotient, divisor));
      if (op == Op::FloorDiv || op == Op::Mod) {
        Value* adjust = b.CreateAnd(b.CreateICmpNE(rest, zero), b.CreateICmpSLT(b.CreateXor(rest, divisor), zero));
        quotient = b.CreateSub(quotient, b.CreateZExt(adjust, type));
        rest = b.CreateSelect(adjust, b.CreateAdd(rest, divisor), rest);
      }
      if (op == Op::Mod || op == Op::Fmod) return b.CreateSelect(special, zero, rest);
      return b.CreateSelect(none, zero, b.CreateSelect(minus, b.CreateNeg(x), quotient));
    }
    case Op::Pow: {
      // By squaring, all bits of the exponent: a fixed number of steps for all lanes.
      Value* result = number(1);
      Value* factor = x;
      Value* exponent = y;
      for (int64_t bit = 0; bit < bits; ++bit) {
        Value* odd = b.CreateICmpNE(b.CreateAnd(exponent, number(1)), zero);
        result = b.CreateSelect(odd, b.CreateMul(result, factor), result);
        factor = b.CreateMul(factor, factor);
        exponent = b.CreateLShr(exponent, number(1));
      }
      if (is_unsigned) return result;
      Value* one = b.CreateICmpEQ(x, number(1));
      Value* minus = b.CreateICmpEQ(x, number(-1));
      Value* odd = b.CreateICmpNE(b.CreateAnd(y, number(1)), zero);
      Value* inverse =
          b.CreateSelect(one, number(1), b.CreateSelect(minus, b.CreateSelect(odd, number(-1), number(1)), zero));
      return b.CreateSelect(b.CreateICmpSLT(y, zero), inverse, result);
    }
    default:
      return llvm::PoisonValue::get(type);
  }
}

llvm::Value* Emitter::cast(Dtype from, Dtype to, Value* value) {
  Type* target = with_lanes_of(type_of(to), value->getType());
  if (from == to) return value;
  Value* zero = llvm::Constant::getNullValue(value->getType());
  if (loops::is_float(from)) {
    if (loops::is_float(to)) return to == Dtype::F64 ? b.CreateFPExt(value, target) : b.CreateFPTrunc(value, target);
    if (to == Dtype::Bool) return b.CreateFCmpUNE(value, zero);
    // Through i32 or i64 as eager's C code does; where that overflows the machine's answer is the least integer.
    const bool wide = to == Dtype::I64;
    Type* whole = with_lanes_of(wide ? b.getInt64Ty() : b.getInt32Ty(), value->getType());
    // x86's instruction gives that. LLVM has no answer for such numbers, and would make anything of a constant.
    if (!llvm::isa<llvm::Constant>(value)) {
      return b.CreateTrunc(b.CreateFreeze(b.CreateFPToSI(value, whole)), target);
    }
    const double limit = wide ? 0x1p63 : 0x1p31;
    Value* inside = b.CreateAnd(b.CreateFCmpOGE(value, llvm::ConstantFP::get(value->getType(), -limit)),
                                b.CreateFCmpOLT(value, llvm::ConstantFP::get(value->getType(), limit)));
    Value* safe = b.CreateSelect(inside, value, zero);
    Value* least = llvm::ConstantInt::get(whole, wide ? uint64_t{1} << 63 : uint64_t{1} << 31);
    return b.CreateTrunc(b.CreateSelect(inside, b.CreateFPToSI(safe, whole), least), target);
  }
  const bool is_unsigned = from == Dtype::U8 || from == Dtype::Bool;
  if (loops::is_float(to)) return is_unsigned ? b.CreateUIToFP(value, target) : b.CreateSIToFP(value, target);
  if (to == Dtype::Bool) return b.CreateICmpNE(value, zero);
  return is_unsigned ? b.CreateZExtOrTrunc(value, target) : b.CreateSExtOrTrunc(value, target);
}

/// An index, wrapped; one out of range is recorded and ends the call.
void Emitter::emit_bounds(const Instruction& instruction) {
  const auto [operand, mask, unused] = instruction.operands;
  const Register size = expression(instruction.index);
  const Register index = get(operand);
  const bool varying = size.varying || index.varying || (mask != loops::kNoValue && get(mask).varying);
  Value* x = varying ? broadcast(index) : index.value;
  Value* n = varying ? broadcast(size) : size.value;
  Value* bad = b.CreateOr(b.CreateICmpSLT(x, b.CreateNeg(n)), b.CreateICmpSGE(x, n));
  Value* allowed = nullptr;
  if (mask != loops::kNoValue) allowed = varying ? broadcast(get(mask)) : get(mask).value;
  Value* counted = allowed;
  if (varying && lanes_.mask) counted = counted ? b.CreateAnd(counted, lanes_.mask) : lanes_.mask;
  if (counted) bad = b.CreateAnd(bad, counted);
  BasicBlock* wrong = new_block("out_of_bounds");
  BasicBlock* right = new_block("in_bounds");
  b.CreateCondBr(varying ? b.CreateOrReduce(bad) : bad, wrong, right);
  b.SetInsertPoint(wrong);
  Value* first = x;
  Value* first_size = n;
  if (varying) {
    Value* word = b.CreateBitCast(bad, b.getIntNTy(lanes_.width));
    Value* lane = b.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, word, b.getTrue());
    lane = b.CreateZExtOrTrunc(lane, b.getInt64Ty());
    first = b.CreateExtractElement(x, lane);
    first_size = b.CreateExtractElement(n, lane);
  }
  // The first error of all threads is kept.
  Value* won = b.CreateExtractValue(
      b.CreateAtomicCmpXchg(error_, b.getInt64(0), b.getInt64(static_cast<uint64_t>(instruction.message) + 1),
                            llvm::MaybeAlign(8), llvm::AtomicOrdering::Monotonic, llvm::AtomicOrdering::Monotonic),
      1);
  BasicBlock* record = new_block("record");
  b.CreateCondBr(won, record, exit_);
  b.SetInsertPoint(record);
  b.CreateStore(first, b.CreateConstGEP1_64(b.getInt64Ty(), error_, 1));
  b.CreateStore(first_size, b.CreateConstGEP1_64(b.getInt64Ty(), error_, 2));
  b.CreateBr(exit_);
  b.SetInsertPoint(right);
  Value* zero = llvm::Constant::getNullValue(x->getType());
  Value* wrapped = b.CreateSelect(b.CreateICmpSLT(x, zero), b.CreateAdd(x, n), x);
  if (allowed) wrapped = b.CreateSelect(allowed, wrapped, zero);
  set(instruction.result, wrapped, varying);
}

}  // namespace magneto::codegen
