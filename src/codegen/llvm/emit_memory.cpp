// Expressions, loads and stores.
#include <stdexcept>

#include "codegen/llvm/emitter.h"
#include "codegen/llvm/vector_math.h"

namespace magneto::codegen {

using llvm::BasicBlock;
using loops::Dtype;
using loops::Instruction;
using loops::Op;
using shapes::Expr;
using shapes::ExprKind;

llvm::Type* Emitter::type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::F32:
    case Dtype::BF16:
    case Dtype::F16:
      return b.getFloatTy();
    case Dtype::F64:
      return b.getDoubleTy();
    case Dtype::Bool:
      return b.getInt1Ty();
    default:
      return b.getIntNTy(static_cast<unsigned>(loops::dtype_bytes(dtype)) * 8);
  }
}

llvm::Type* Emitter::memory_type(Dtype dtype) {
  if (dtype == Dtype::BF16 || dtype == Dtype::F16) return b.getInt16Ty();
  return dtype == Dtype::Bool ? b.getInt8Ty() : type_of(dtype);
}

llvm::Type* Emitter::lanes_type(Type* scalar, unsigned width) const {
  return width == 1 ? scalar : llvm::FixedVectorType::get(scalar, width);
}

llvm::Value* Emitter::splat(Value* scalar, unsigned width) {
  return width == 1 || scalar->getType()->isVectorTy() ? scalar : b.CreateVectorSplat(width, scalar);
}

llvm::Value* Emitter::broadcast(Register reg) { return splat(reg.value); }

/// 0, 1, 2, ...
llvm::Value* Emitter::lane_numbers(Type* scalar, unsigned width) {
  if (width == 1) return llvm::ConstantInt::get(scalar, 0);
  std::vector<llvm::Constant*> numbers;
  for (unsigned i = 0; i < width; ++i) numbers.push_back(llvm::ConstantInt::get(scalar, i));
  return llvm::ConstantVector::get(numbers);
}

bool Emitter::is_varying(Expr expr) const {
  return lanes_.width > 1 && shapes::any_leaf(expr, [&](Expr leaf) {
           if (leaf.kind() == ExprKind::Variable) return leaf.id() == lanes_.variable;
           return leaf.kind() == ExprKind::Value && get(leaf.id()).varying;
         });
}

Emitter::Register Emitter::expression(Expr expr) {
  if (is_varying(expr)) return {varying_expression(expr), true};
  return {uniform(expr), false};
}

namespace {

/// Python's division of i64 scalars or vectors. A positive constant divisor, the usual one, takes no selects.
struct Division {
  llvm::Value* quotient;
  llvm::Value* rest;
};
Division divide(llvm::IRBuilder<>& b, llvm::Value* x, llvm::Value* y, bool never_negative) {
  llvm::Type* type = x->getType();
  if (never_negative) return {b.CreateUDiv(x, y), b.CreateURem(x, y)};
  llvm::Value* zero = llvm::Constant::getNullValue(type);
  llvm::Value* one = llvm::ConstantInt::get(type, 1);
  llvm::Value* none = b.CreateICmpEQ(y, zero);
  llvm::Value* minus = b.CreateICmpEQ(y, llvm::ConstantInt::getSigned(type, -1));
  llvm::Value* divisor = b.CreateSelect(b.CreateOr(none, minus), one, y);
  llvm::Value* quotient = b.CreateSDiv(x, divisor);
  llvm::Value* rest = b.CreateSub(x, b.CreateMul(quotient, divisor));
  llvm::Value* apart = b.CreateICmpSLT(b.CreateXor(rest, divisor), zero);
  llvm::Value* adjust = b.CreateAnd(b.CreateICmpNE(rest, zero), apart);
  quotient = b.CreateSub(quotient, b.CreateZExt(adjust, type));
  rest = b.CreateSelect(adjust, b.CreateAdd(rest, divisor), rest);
  quotient = b.CreateSelect(minus, b.CreateNeg(x), quotient);
  quotient = b.CreateSelect(none, zero, quotient);
  rest = b.CreateSelect(b.CreateOr(none, minus), zero, rest);
  return {quotient, rest};
}

}  // namespace

/// An expression with the same value in all lanes: an i64.
llvm::Value* Emitter::uniform(Expr expr) {
  switch (expr.kind()) {
    case ExprKind::Constant:
      return b.getInt64(static_cast<uint64_t>(expr.number()));
    case ExprKind::Symbol:
      return symbols_.at(kernel_.position_of(expr.id()));
    case ExprKind::Variable:
      return variables_[expr.id()];
    case ExprKind::Value: {
      Value* value = get(expr.id()).value;
      return dtype_of(expr.id()) == Dtype::U8 ? b.CreateZExt(value, b.getInt64Ty())
                                              : b.CreateSExtOrTrunc(value, b.getInt64Ty());
    }
    default:
      return varying_expression(expr);
  }
}

llvm::Value* Emitter::varying_expression(Expr expr) {
  // The same code for scalars and vectors: uniform parts are computed once and broadcast.
  const bool varying = is_varying(expr);
  const auto part = [&](Expr operand) {
    Value* value = is_varying(operand) ? varying_expression(operand) : uniform(operand);
    return varying ? splat(value) : value;
  };
  const auto number = [&](int64_t value) {
    Value* constant = b.getInt64(static_cast<uint64_t>(value));
    return varying ? splat(constant) : constant;
  };
  switch (expr.kind()) {
    case ExprKind::Variable:
      return b.CreateAdd(splat(variables_[expr.id()]), lane_numbers(b.getInt64Ty(), lanes_.width));
    case ExprKind::Value: {
      Value* value = broadcast(get(expr.id()));
      Type* wide = lanes_type(b.getInt64Ty(), lanes_.width);
      return dtype_of(expr.id()) == Dtype::U8 ? b.CreateZExt(value, wide) : b.CreateSExtOrTrunc(value, wide);
    }
    case ExprKind::Sum: {
      Value* uniform_sum = b.getInt64(static_cast<uint64_t>(expr.number()));
      Value* varying_sum = nullptr;
      for (size_t i = 0; i < expr.operands().size(); ++i) {
        const Expr operand = expr.operands()[i];
        const bool here = is_varying(operand);
        Value* term = here ? varying_expression(operand) : uniform(operand);
        if (expr.coefficients()[i] != 1) {
          Value* scale = b.getInt64(static_cast<uint64_t>(expr.coefficients()[i]));
          term = b.CreateMul(term, here ? splat(scale) : scale);
        }
        if (!here) {
          uniform_sum = b.CreateAdd(uniform_sum, term);
        } else {
          varying_sum = varying_sum ? b.CreateAdd(varying_sum, term) : term;
        }
      }
      return varying_sum ? b.CreateAdd(varying_sum, splat(uniform_sum)) : uniform_sum;
    }
    case ExprKind::Product: {
      Value* result = nullptr;
      for (const Expr factor : expr.operands()) result = result ? b.CreateMul(result, part(factor)) : part(factor);
      return result;
    }
    case ExprKind::FloorDiv:
    case ExprKind::Mod: {
      const Expr x = expr.operands()[0], y = expr.operands()[1];
      // Variables count from zero, and so do most symbols: a sum of them with positive coefficients is never negative.
      const auto low = shapes::range_of(x, [&](Expr leaf) -> shapes::Range {
        if (leaf.kind() == ExprKind::Symbol) return kernel_.range_of(leaf);
        return leaf.kind() == ExprKind::Value ? shapes::Range{} : shapes::Range{0, INT64_MAX};
      });
      const bool plain = low.low >= 0 && y.is_constant() && y.number() > 0;
      const Division parts = divide(b, part(x), part(y), plain);
      return expr.kind() == ExprKind::FloorDiv ? parts.quotient : parts.rest;
    }
    case ExprKind::Min:
      return b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, part(expr.operands()[0]), part(expr.operands()[1]));
    case ExprKind::Max:
      return b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, part(expr.operands()[0]), part(expr.operands()[1]));
    default:
      return varying ? splat(number(expr.number())) : number(expr.number());
  }
}

/// What memory holds, as the value that a kernel computes with.
llvm::Value* Emitter::read(Dtype dtype, Value* bits) {
  if (dtype == Dtype::BF16) return emit_from_bf16(b, bits);
  if (dtype == Dtype::F16) return emit_from_f16(b, bits);
  if (dtype == Dtype::Bool) return b.CreateICmpNE(bits, llvm::Constant::getNullValue(bits->getType()));
  return bits;
}

llvm::Value* Emitter::written(Dtype dtype, Value* value, bool exact) {
  if (dtype == Dtype::BF16 && exact) {
    Value* word = b.CreateLShr(b.CreateBitCast(value, with_lanes_of(b.getInt32Ty(), value->getType())), 16);
    return b.CreateTrunc(word, with_lanes_of(b.getInt16Ty(), value->getType()));
  }
  if (dtype == Dtype::BF16) return emit_to_bf16(b, value);
  if (dtype == Dtype::F16) return emit_to_f16(b, value);
  if (dtype == Dtype::Bool) return b.CreateZExt(value, with_lanes_of(b.getInt8Ty(), value->getType()));
  return value;
}

llvm::Value* Emitter::access_mask(loops::ValueId mask) {
  if (mask == loops::kNoValue) return lanes_.mask;
  Value* own = broadcast(get(mask));
  return lanes_.mask ? b.CreateAnd(lanes_.mask, own) : own;
}

llvm::Value* Emitter::guarded(Value* condition, Value* otherwise, const std::function<Value*()>& body) {
  BasicBlock* before = b.GetInsertBlock();
  BasicBlock* inside = new_block("allowed");
  BasicBlock* after = new_block("joined");
  b.CreateCondBr(condition, inside, after);
  b.SetInsertPoint(inside);
  Value* value = body();
  BasicBlock* last = b.GetInsertBlock();
  b.CreateBr(after);
  b.SetInsertPoint(after);
  if (!otherwise) return nullptr;
  llvm::PHINode* phi = b.CreatePHI(otherwise->getType(), 2);
  phi->addIncoming(value, last);
  phi->addIncoming(otherwise, before);
  return phi;
}

namespace {

/// How the elements of an access lie: by the lane's coefficient.
std::optional<int64_t> constant_stride(Expr index, int32_t variable, bool indirect) {
  if (indirect) return std::nullopt;
  const auto linear = shapes::linear_in(index, Expr::variable(variable));
  if (!linear || !linear->coefficient.is_constant()) return std::nullopt;
  return linear->coefficient.number();
}

}  // namespace

/// The element of lane 0, where lanes are `stride` apart.
llvm::Value* Emitter::lane_start(Expr index, int64_t stride) {
  const auto linear = shapes::linear_in(index, Expr::variable(lanes_.variable));
  Value* along = variables_[lanes_.variable];
  if (stride != 1) along = b.CreateMul(along, b.getInt64(static_cast<uint64_t>(stride)));
  return b.CreateAdd(uniform(linear->rest), along);
}

llvm::Value* Emitter::lane_pointers(Dtype dtype, Value* base, Expr index) {
  return b.CreateGEP(memory_type(dtype), base, splat(expression(index).value));
}

/// The machine's gather is slower than loads one by one, and with data that no cache has many times: the CPU does not
/// see what will be read next. Every second element and backwards: whole vectors, their elements put in order.
llvm::Value* Emitter::strided_load(const Instruction& instruction, int64_t stride) {
  Type* type = memory_type(kernel_.buffers[instruction.buffer].dtype);
  const auto width = static_cast<int64_t>(lanes_.width);
  Type* vector = lanes_type(type, lanes_.width);
  Value* first = b.CreateGEP(type, buffers_[instruction.buffer].pointer, lane_start(instruction.index, stride));
  const auto vector_at = [&](int64_t element) {
    return b.CreateAlignedLoad(vector, b.CreateConstGEP1_64(type, first, static_cast<uint64_t>(element)),
                               llvm::Align(1));
  };
  std::vector<int> order;
  if (stride == -1) {
    for (int64_t lane = 0; lane < width; ++lane) order.push_back(static_cast<int>(width - 1 - lane));
    return b.CreateShuffleVector(vector_at(1 - width), order);
  }
  if (stride == 2) {
    // The second vector ends with the last lane's element: behind it may be no memory.
    for (int64_t lane = 0; lane < width; ++lane) {
      order.push_back(static_cast<int>(2 * lane < width ? 2 * lane : 2 * lane + 1));
    }
    return b.CreateShuffleVector(vector_at(0), vector_at(width - 1), order);
  }
  Value* result = llvm::PoisonValue::get(vector);
  for (int64_t lane = 0; lane < width; ++lane) {
    Value* pointer = b.CreateConstGEP1_64(type, first, static_cast<uint64_t>(lane * stride));
    result =
        b.CreateInsertElement(result, b.CreateAlignedLoad(type, pointer, llvm::Align(1)), static_cast<uint64_t>(lane));
  }
  return result;
}

/// The bits of an element for each lane. `mask` and `other` (bits too) may be null.
llvm::Value* Emitter::raw_load(const Instruction& instruction, Value* mask, Value* other) {
  const Dtype dtype = kernel_.buffers[instruction.buffer].dtype;
  Type* type = memory_type(dtype);
  Value* base = buffers_[instruction.buffer].pointer;
  const llvm::Align align(1);
  Type* vector = lanes_type(type, lanes_.width);
  const bool indirect = shapes::any_leaf(
      instruction.index, [&](Expr leaf) { return leaf.kind() == ExprKind::Value && get(leaf.id()).varying; });
  if (!other) other = llvm::Constant::getNullValue(vector);
  const auto stride = constant_stride(instruction.index, lanes_.variable, indirect);
  if (stride == 1) {
    Value* pointer = b.CreateGEP(type, base, lane_start(instruction.index, 1));
    if (!mask) return b.CreateAlignedLoad(vector, pointer, align);
    return b.CreateMaskedLoad(vector, pointer, align, mask, other);
  }
  if (stride && !mask) return strided_load(instruction, *stride);
  Value* pointers = lane_pointers(dtype, base, instruction.index);
  if (mask && loops::dtype_bytes(dtype) < 4) {
    // The CPU gathers no narrow elements: LLVM loads them one by one, and with a mask each behind a branch of its own.
    pointers = b.CreateSelect(mask, pointers, splat(stack_slot(type)));
    return b.CreateSelect(mask, b.CreateMaskedGather(vector, pointers, align, splat(b.getTrue()), other), other);
  }
  return b.CreateMaskedGather(vector, pointers, align, mask ? mask : splat(b.getTrue()), other);
}

void Emitter::emit_load(const Instruction& instruction) {
  const Dtype dtype = kernel_.buffers[instruction.buffer].dtype;
  Type* type = memory_type(dtype);
  const auto [mask, other, unused] = instruction.operands;
  const bool varying = is_varying(instruction.index) || (mask != loops::kNoValue && get(mask).varying);
  if (!varying) {
    // One element for all lanes.
    const auto load = [&]() -> Value* {
      Value* pointer = b.CreateGEP(type, buffers_[instruction.buffer].pointer, uniform(instruction.index));
      return read(dtype, b.CreateAlignedLoad(type, pointer, llvm::Align(1)));
    };
    if (mask == loops::kNoValue) return set(instruction.result, load(), false);
    const bool other_varies = get(other).varying;
    Value* otherwise = get(other).value;
    Value* value = guarded(get(mask).value, otherwise, [&] {
      Value* loaded = load();
      return other_varies ? splat(loaded) : loaded;
    });
    return set(instruction.result, value, other_varies);
  }
  if (Value* known = known_.find(instruction, lanes_.mask)) return set(instruction.result, known, true);
  if (known_.in_registers(instruction.buffer)) throw std::logic_error("a row in registers is not there");
  Value* bits = raw_load(instruction, access_mask(mask), nullptr);
  Value* value = read(dtype, bits);
  known_.note_load(instruction, lanes_.mask, value);
  if (mask != loops::kNoValue) value = b.CreateSelect(broadcast(get(mask)), value, broadcast(get(other)));
  set(instruction.result, value, true);
}

/// Stores whole lines around the cache, where they are whole lines.
void Emitter::stream(Value* allowed, Value* value, Value* pointer) {
  const auto bytes = module_.getDataLayout().getTypeStoreSize(value->getType()).getFixedValue();
  const llvm::Align line(std::min<uint64_t>(bytes, static_cast<uint64_t>(schedule_.machine.vector_bytes)));
  Value* address = b.CreatePtrToInt(pointer, b.getInt64Ty());
  Value* rest = b.CreateAnd(address, b.getInt64(line.value() - 1));
  Value* whole = b.CreateAnd(allowed, b.CreateICmpEQ(rest, b.getInt64(0)));
  BasicBlock* around = new_block("around");
  BasicBlock* through = new_block("through");
  BasicBlock* after = new_block("stored");
  b.CreateCondBr(whole, around, through);
  b.SetInsertPoint(around);
  llvm::StoreInst* store = b.CreateAlignedStore(value, pointer, line);
  store->setMetadata(llvm::LLVMContext::MD_nontemporal,
                     llvm::MDNode::get(context_, llvm::ConstantAsMetadata::get(b.getInt32(1))));
  b.CreateBr(after);
  b.SetInsertPoint(through);
  b.CreateAlignedStore(value, pointer, llvm::Align(1));
  b.CreateBr(after);
  b.SetInsertPoint(after);
}

void Emitter::read_ahead(size_t block) {
  for (const Schedule::Ahead& ahead : schedule_.ahead) {
    if (ahead.block == block && lanes_.width > 1) read_ahead(ahead);
  }
}

/// Into the second cache: the first holds this row. Where there is no next row, nothing happens.
void Emitter::read_ahead(const Schedule::Ahead& ahead) {
  const loops::Buffer& buffer = kernel_.buffers[static_cast<size_t>(ahead.buffer)];
  const auto linear = shapes::linear_in(ahead.index, Expr::variable(lanes_.variable));
  if (!linear || !linear->coefficient.is_constant(1)) return;
  Value* start = b.CreateAdd(uniform(linear->rest), variables_[lanes_.variable]);
  Value* pointer = b.CreateGEP(memory_type(buffer.dtype), buffers_[static_cast<size_t>(ahead.buffer)].pointer, start);
  const int64_t bytes = lanes_.width * loops::dtype_bytes(buffer.dtype);
  for (int64_t offset = 0; offset < bytes; offset += 64) prefetch(pointer, offset);
}

void Emitter::prefetch(Value* pointer, int64_t offset) {
  constexpr int read = 0, second_cache = 2, data = 1;
  b.CreateIntrinsic(llvm::Intrinsic::prefetch, {b.getPtrTy()},
                    {b.CreateConstGEP1_64(b.getInt8Ty(), pointer, static_cast<uint64_t>(offset)), b.getInt32(read),
                     b.getInt32(second_cache), b.getInt32(data)});
}

void Emitter::raw_store(const Instruction& instruction, Value* value, Value* mask) {
  const Dtype dtype = kernel_.buffers[instruction.buffer].dtype;
  Type* type = memory_type(dtype);
  Value* base = buffers_[instruction.buffer].pointer;
  const llvm::Align align(1);
  const bool indirect = shapes::any_leaf(
      instruction.index, [&](Expr leaf) { return leaf.kind() == ExprKind::Value && get(leaf.id()).varying; });
  const auto stride = constant_stride(instruction.index, lanes_.variable, indirect);
  if (stride == 1) {
    Value* pointer = b.CreateGEP(type, base, lane_start(instruction.index, 1));
    if (mask) {
      b.CreateMaskedStore(value, pointer, align, mask);
    } else if (Value* allowed = buffers_[static_cast<size_t>(instruction.buffer)].streams) {
      stream(allowed, value, pointer);
    } else {
      b.CreateAlignedStore(value, pointer, align);
    }
    return;
  }
  if (stride && !mask) {
    Value* first = b.CreateGEP(type, base, lane_start(instruction.index, *stride));
    for (unsigned lane = 0; lane < lanes_.width; ++lane) {
      Value* pointer = b.CreateConstGEP1_64(type, first, static_cast<uint64_t>(lane * *stride));
      b.CreateAlignedStore(b.CreateExtractElement(value, uint64_t{lane}), pointer, align);
    }
    return;
  }
  Value* pointers = lane_pointers(dtype, base, instruction.index);
  if (mask && (loops::dtype_bytes(dtype) < 4 || !schedule_.machine.masks)) {
    pointers = b.CreateSelect(mask, pointers, splat(stack_slot(type)));  // as for loads
    mask = nullptr;
  }
  b.CreateMaskedScatter(value, pointers, align, mask ? mask : splat(b.getTrue()));
}

void Emitter::emit_store(const Instruction& instruction) {
  const Dtype dtype = kernel_.buffers[instruction.buffer].dtype;
  Type* type = memory_type(dtype);
  const auto [stored, mask, unused] = instruction.operands;
  const bool adds = instruction.op == Op::StoreAdd;
  if (lanes_.width == 1) {
    const auto store = [&]() -> Value* {
      Value* pointer = b.CreateGEP(type, buffers_[instruction.buffer].pointer, uniform(instruction.index));
      Value* value = get(stored).value;
      if (adds) {
        Value* pair[2] = {read(dtype, b.CreateAlignedLoad(type, pointer, llvm::Align(1))), value};
        value = loops::is_float(dtype) ? b.CreateFAdd(pair[0], pair[1]) : b.CreateAdd(pair[0], pair[1]);
      }
      b.CreateAlignedStore(written(dtype, value, !adds && values_[stored].is_bf16), pointer, llvm::Align(1));
      return nullptr;
    };
    if (mask == loops::kNoValue) {
      store();
    } else {
      guarded(get(mask).value, nullptr, store);
    }
    known_.note_store(instruction, lanes_.mask, get(stored).value);
    return;
  }
  Value* allowed = access_mask(mask);
  Value* value = broadcast(get(stored));
  known_.note_store(instruction, lanes_.mask, value);
  if (known_.in_registers(instruction.buffer)) return;
  if (adds) {
    Value* before = read(dtype, raw_load(instruction, allowed, nullptr));
    value = loops::is_float(dtype) ? b.CreateFAdd(before, value) : b.CreateAdd(before, value);
  }
  raw_store(instruction, written(dtype, value, !adds && values_[stored].is_bf16), allowed);
}

}  // namespace magneto::codegen
