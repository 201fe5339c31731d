// Reductions and scans. A reduction's state is kept per lane, in one set for whole vectors and one for what is left;
// behind the stage the lanes and the sets are combined. Lanes across rows are rows: they stay apart.
//
// A wide sum's state is a sum of floats in lanes of float, and the total of such sums in lanes of double, which takes
// twice the registers. The first is added to the second once in kPart vectors, so the second costs next to nothing.
#include <limits>

#include "codegen/llvm/emitter.h"
#include "codegen/llvm/vector_math.h"

namespace magneto::codegen {

using loops::Dtype;
using loops::Instruction;
using loops::Op;
using loops::OpClass;
using shapes::Expr;

namespace {

/// The least or greatest value of a dtype as a constant.
llvm::Constant* extreme(llvm::Type* type, Dtype dtype, bool greatest) {
  if (loops::is_float(dtype)) return llvm::ConstantFP::getInfinity(type, !greatest);
  const unsigned bits = type->getScalarSizeInBits();
  if (dtype == Dtype::U8 || dtype == Dtype::Bool) {
    return llvm::ConstantInt::get(type, greatest ? llvm::APInt::getAllOnes(bits) : llvm::APInt::getZero(bits));
  }
  return llvm::ConstantInt::get(type,
                                greatest ? llvm::APInt::getSignedMaxValue(bits) : llvm::APInt::getSignedMinValue(bits));
}

}  // namespace

std::vector<llvm::Value*> Emitter::identity(const Instruction& instruction, unsigned width) {
  const Dtype dtype = dtype_of(instruction.operands[0]);
  Type* type = lanes_type(type_of(dtype), width);
  Type* i64 = lanes_type(b.getInt64Ty(), width);
  switch (instruction.op) {
    case Op::ReduceProd:
    case Op::ScanProd:
      return {loops::is_float(dtype) ? llvm::ConstantFP::get(type, 1.0) : llvm::ConstantInt::get(type, 1)};
    case Op::ReduceMax:
    case Op::ReduceMin:
      if (loops::is_float(dtype)) {
        return {extreme(type, dtype, instruction.op == Op::ReduceMin),
                llvm::Constant::getNullValue(lanes_type(flag_type(), width))};
      }
      return {extreme(type, dtype, instruction.op == Op::ReduceMin)};
    case Op::ScanMax:
      return {extreme(type, dtype, false)};
    case Op::ScanMin:
      return {extreme(type, dtype, true)};
    case Op::ReduceAll:
      return {llvm::ConstantInt::getAllOnesValue(type)};
    case Op::ReduceArgmax:
    case Op::ScanArgmax:
      return {extreme(type, dtype, false), llvm::ConstantInt::get(i64, INT64_MAX)};
    case Op::ReduceArgmin:
    case Op::ScanArgmin:
      return {extreme(type, dtype, true), llvm::ConstantInt::get(i64, INT64_MAX)};
    case Op::ReduceWelford:  // mean, sum of squares, count
      return {llvm::Constant::getNullValue(type), llvm::Constant::getNullValue(type),
              llvm::Constant::getNullValue(type)};
    case Op::ReduceSumWide:  // a part, the total of those before it
      return {llvm::Constant::getNullValue(type), llvm::Constant::getNullValue(lanes_type(b.getDoubleTy(), width))};
    default:
      return {llvm::Constant::getNullValue(type)};
  }
}

/// Two states of one width as one. Not for scans' indices, whose latest of equal values wins.
std::vector<llvm::Value*> Emitter::combine(const Instruction& instruction, const std::vector<Value*>& x,
                                           const std::vector<Value*>& y) {
  const Dtype dtype = dtype_of(instruction.operands[0]);
  const bool real = loops::is_float(dtype);
  Value* pair[2] = {x[0], y[0]};
  const auto math = [&](Op op) {
    return std::vector<Value*>{real ? emit_float_math(b, op, pair) : integer_math(op, dtype, pair)};
  };
  switch (instruction.op) {
    case Op::ReduceSum:
    case Op::ReduceSumWide:  // totals
    case Op::ScanSum:
      return math(Op::Add);
    case Op::ReduceProd:
    case Op::ScanProd:
      return math(Op::Mul);
    case Op::ReduceMax:
    case Op::ReduceMin: {
      const bool greatest = instruction.op == Op::ReduceMax;
      if (!real) return math(greatest ? Op::Max : Op::Min);
      // x never is NaN: one instruction of the machine.
      Value* wins = greatest ? b.CreateFCmpOGT(y[0], x[0]) : b.CreateFCmpOLT(y[0], x[0]);
      std::vector<Value*> best = {b.CreateSelect(wins, y[0], x[0])};
      if (x.size() > 1) best.push_back(b.CreateOr(x[1], y[1]));
      return best;
    }
    case Op::ScanMax:
      return math(Op::Max);
    case Op::ScanMin:
      return math(Op::Min);
    case Op::ReduceAny:
      return {b.CreateOr(x[0], y[0])};
    case Op::ReduceAll:
      return {b.CreateAnd(x[0], y[0])};
    case Op::ReduceArgmax:
    case Op::ReduceArgmin: {
      Value* better = compare(instruction.op == Op::ReduceArgmax ? Op::Gt : Op::Lt, dtype, y[0], x[0]);
      Value* same = compare(Op::Eq, dtype, y[0], x[0]);
      if (real) {
        Value* old_nan = b.CreateFCmpUNO(x[0], x[0]);
        Value* new_nan = b.CreateFCmpUNO(y[0], y[0]);
        better = b.CreateOr(better, b.CreateAnd(new_nan, b.CreateNot(old_nan)));
        same = b.CreateOr(same, b.CreateAnd(new_nan, old_nan));
      }
      Value* wins = b.CreateOr(better, b.CreateAnd(same, b.CreateICmpSLT(y[1], x[1])));
      return {b.CreateSelect(wins, y[0], x[0]), b.CreateSelect(wins, y[1], x[1])};
    }
    case Op::ReduceWelford: {
      Value* count = b.CreateFAdd(x[2], y[2]);
      Value* zero = llvm::Constant::getNullValue(count->getType());
      Value* one = llvm::ConstantFP::get(count->getType(), 1.0);
      Value* share = b.CreateFDiv(y[2], b.CreateSelect(b.CreateFCmpOGT(count, zero), count, one));
      Value* delta = b.CreateFSub(y[0], x[0]);
      Value* mean = b.CreateFAdd(x[0], b.CreateFMul(delta, share));
      Value* between = b.CreateFMul(b.CreateFMul(delta, delta), b.CreateFMul(x[2], share));
      return {mean, b.CreateFAdd(b.CreateFAdd(x[1], y[1]), between), count};
    }
    default:
      return x;
  }
}

/// The layouts in which a stage's lanes run.
std::vector<unsigned> Emitter::widths_of(size_t block) const {
  const codegen::Lanes& lanes = schedule_.stages[block];
  if (lanes.variable < 0) return {lanes_.width};
  const auto wide = static_cast<unsigned>(lanes.wide), narrow = static_cast<unsigned>(lanes.narrow);
  const Expr extent = kernel_.blocks[block].loops.back().extent;
  if (wide == narrow) return {wide};
  if (!extent.is_constant()) return {wide, narrow};
  std::vector<unsigned> widths;
  if (extent.number() >= lanes.wide) widths.push_back(wide);
  if (extent.number() % lanes.wide != 0 || widths.empty()) widths.push_back(narrow);
  return widths;
}

void Emitter::start_reductions(const loops::Block& block, const std::vector<unsigned>& widths) {
  for (const Instruction& instruction : block.code) {
    const OpClass op_class = loops::facts(instruction.op).op_class;
    if (op_class != OpClass::Reduce && op_class != OpClass::Scan) continue;
    std::vector<Accumulator>& layouts = values_[instruction.result].reduction.layouts;
    layouts.clear();
    for (const unsigned width : widths) {
      Accumulator accumulator{width, {}};
      for (Value* start : identity(instruction, width)) {
        accumulator.slots.push_back(stack_slot(start->getType()));
        b.CreateStore(start, accumulator.slots.back());
      }
      layouts.push_back(std::move(accumulator));
    }
  }
}

void Emitter::emit_reduce(const Instruction& instruction) {
  std::vector<Accumulator>& layouts = values_[instruction.result].reduction.layouts;
  Accumulator* accumulator = &layouts[0];
  for (Accumulator& layout : layouts) {
    if (layout.width == lanes_.width) accumulator = &layout;
  }
  std::vector<Value*> state;
  for (Value* slot : accumulator->slots) {
    state.push_back(b.CreateLoad(llvm::cast<llvm::AllocaInst>(slot)->getAllocatedType(), slot));
  }
  Value* x = broadcast(get(instruction.operands[0]));
  std::vector<Value*> next;
  if (instruction.op == Op::ReduceWelford) {
    Type* type = x->getType();
    Value* one = llvm::ConstantFP::get(type, 1.0);
    Value* count = b.CreateFAdd(state[2], one);
    Value* inverse = nullptr;
    if (!lanes_.mask && lanes_.width > 1) {
      // All lanes have seen as many: one division does.
      Value* scalar = b.CreateExtractElement(count, uint64_t{0});
      inverse = splat(b.CreateFDiv(llvm::ConstantFP::get(scalar->getType(), 1.0), scalar));
    } else {
      inverse = b.CreateFDiv(one, count);
    }
    Value* delta = b.CreateFSub(x, state[0]);
    Value* mean = b.CreateFAdd(state[0], b.CreateFMul(delta, inverse));
    next = {mean, b.CreateFAdd(state[1], b.CreateFMul(delta, b.CreateFSub(x, mean))), count};
  } else if (instruction.op == Op::ReduceSumWide) {
    next = {b.CreateFAdd(state[0], x), state[1]};
  } else if (instruction.operands[1] != loops::kNoValue) {
    next = combine(instruction, state, {x, broadcast(get(instruction.operands[1]))});
  } else if (state.size() > 1) {
    next = combine(instruction, state, {x, b.CreateSExt(b.CreateFCmpUNO(x, x), state[1]->getType())});
  } else {
    next = combine(instruction, state, {x});
  }
  for (size_t i = 0; i < next.size(); ++i) {
    if (lanes_.mask) next[i] = b.CreateSelect(lanes_.mask, next[i], state[i]);
    b.CreateStore(next[i], accumulator->slots[i]);
  }
}

/// Whether a state is a greatest or least float so far, and per lane whether a NaN was met, which decides the result.
bool Emitter::remembers_nan(const Instruction& instruction) const {
  return (instruction.op == Op::ReduceMax || instruction.op == Op::ReduceMin) &&
         loops::is_float(dtype_of(instruction.operands[0]));
}

/// A yes or no that is kept beside a number in each lane: in mask registers where the machine has them.
llvm::Type* Emitter::flag_type() { return schedule_.machine.masks ? b.getInt1Ty() : b.getInt32Ty(); }

std::vector<llvm::Value*> Emitter::add_up_lanes(const Instruction& instruction, std::vector<Value*> state,
                                                unsigned least) {
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(state[0]->getType());
  if (!vector) return state;
  Value* met_nan = nullptr;
  if (least == 1 && remembers_nan(instruction)) {
    met_nan = b.CreateOrReduce(state.back());
    state.pop_back();
  }
  for (unsigned width = vector->getNumElements() / 2; width >= least; width /= 2) {
    std::vector<int> low, high;
    for (unsigned i = 0; i < width; ++i) {
      low.push_back(static_cast<int>(i));
      high.push_back(static_cast<int>(i + width));
    }
    std::vector<Value*> a, c;
    for (Value* part : state) {
      if (width == 1) {
        a.push_back(b.CreateExtractElement(part, uint64_t{0}));
        c.push_back(b.CreateExtractElement(part, uint64_t{1}));
      } else {
        a.push_back(b.CreateShuffleVector(part, low));
        c.push_back(b.CreateShuffleVector(part, high));
      }
    }
    state = combine(instruction, a, c);
  }
  if (met_nan) state.push_back(met_nan);
  return state;
}

/// Adds the parts of wide sums to their totals.
void Emitter::add_parts(const loops::Block& block) {
  for (const Instruction& instruction : block.code) {
    if (instruction.op != Op::ReduceSumWide) continue;
    for (const Accumulator& accumulator : values_[instruction.result].reduction.layouts) {
      auto* part = llvm::cast<llvm::AllocaInst>(accumulator.slots[0]);
      auto* total = llvm::cast<llvm::AllocaInst>(accumulator.slots[1]);
      Value* wide = b.CreateFPExt(b.CreateLoad(part->getAllocatedType(), part), total->getAllocatedType());
      b.CreateStore(b.CreateFAdd(b.CreateLoad(total->getAllocatedType(), total), wide), total);
      b.CreateStore(llvm::Constant::getNullValue(part->getAllocatedType()), part);
    }
  }
}

/// Behind which of the stage's loops the parts of wide sums are added: the outermost one that makes no long parts.
/// No loop (all are inside the part): 0; the loops' number: each run of the innermost loop makes several.
size_t Emitter::parts_depth(size_t number) const {
  const loops::Block& block = kernel_.blocks[number];
  const codegen::Lanes& stage = schedule_.stages[number];
  int64_t steps = 1;
  for (size_t depth = block.loops.size(); depth-- > 0;) {
    const loops::Loop& loop = block.loops[depth];
    if (!loop.extent.is_constant()) return depth + 1;
    const int64_t lanes = stage.variable == loop.variable ? stage.wide : 1;
    steps *= std::max<int64_t>(1, (loop.extent.number() + lanes - 1) / lanes);
    if (steps > kPart) return depth + 1;
  }
  return 0;
}

void Emitter::finish_reductions(const loops::Block& block) {
  for (const Instruction& instruction : block.code) {
    if (loops::facts(instruction.op).op_class != OpClass::Reduce) continue;
    std::vector<Value*> result;
    // Lanes of the stage's own loop end here; lanes across rows go on.
    const bool across = lanes_.width > 1;
    const std::vector<Accumulator>& layouts = values_[instruction.result].reduction.layouts;
    const unsigned narrowest = layouts.back().width;
    for (const Accumulator& accumulator : layouts) {
      std::vector<Value*> state;
      for (Value* slot : accumulator.slots) {
        state.push_back(b.CreateLoad(llvm::cast<llvm::AllocaInst>(slot)->getAllocatedType(), slot));
      }
      // All in one part: its lanes are added as floats.
      if (instruction.op == Op::ReduceSumWide) state = {one_part(across) ? state[0] : state[1]};
      if (!across) state = add_up_lanes(instruction, std::move(state), narrowest);
      result = result.empty() ? state : combine(instruction, result, state);
    }
    if (!across) result = add_up_lanes(instruction, std::move(result), 1);
    const loops::ValueId id = instruction.result;
    if (instruction.op == Op::ReduceWelford) {
      values_[id].reduction.welford = result;
      values_[id].reduction.welford_varies = across;
    }
    Value* value = result[0];
    if (instruction.op == Op::ReduceSumWide && one_part(across)) value = b.CreateFPExt(value, b.getDoubleTy());
    if (remembers_nan(instruction)) {
      value = b.CreateSelect(b.CreateIsNotNull(result[1]), llvm::ConstantFP::getNaN(value->getType()), value);
    }
    if (instruction.op == Op::ReduceArgmax || instruction.op == Op::ReduceArgmin) {
      Value* none = b.CreateICmpEQ(result[1], llvm::ConstantInt::get(result[1]->getType(), INT64_MAX));
      value = b.CreateSelect(none, llvm::Constant::getNullValue(result[1]->getType()), result[1]);
    }
    set(id, value, across);
  }
}

/// The running value. Lanes are rows here, or there are none: a stage with a scan has no lanes of its own.
void Emitter::emit_scan(const Instruction& instruction) {
  Accumulator& accumulator = values_[instruction.result].reduction.layouts[0];
  std::vector<Value*> state;
  for (Value* slot : accumulator.slots) {
    state.push_back(b.CreateLoad(llvm::cast<llvm::AllocaInst>(slot)->getAllocatedType(), slot));
  }
  Value* x = broadcast(get(instruction.operands[0]));
  std::vector<Value*> next;
  if (instruction.op == Op::ScanArgmax || instruction.op == Op::ScanArgmin) {
    const Dtype dtype = dtype_of(instruction.operands[0]);
    Value* index = broadcast(get(instruction.operands[1]));
    Value* wins = compare(instruction.op == Op::ScanArgmax ? Op::Ge : Op::Le, dtype, x, state[0]);
    if (loops::is_float(dtype)) {
      Value* old_nan = b.CreateFCmpUNO(state[0], state[0]);
      wins = b.CreateOr(b.CreateFCmpUNO(x, x), b.CreateAnd(wins, b.CreateNot(old_nan)));
    }
    next = {b.CreateSelect(wins, x, state[0]), b.CreateSelect(wins, index, state[1])};
  } else {
    next = combine(instruction, state, {x});
  }
  for (size_t i = 0; i < next.size(); ++i) b.CreateStore(next[i], accumulator.slots[i]);
  set(instruction.result, next.back(), lanes_.width > 1);
}

}  // namespace magneto::codegen
