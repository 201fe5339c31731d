#include <llvm/IR/DIBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <algorithm>

#include "codegen/llvm/emitter.h"
#include "codegen/llvm/vector_math.h"
#include "loops/normalize.h"

namespace magneto::codegen {

using llvm::BasicBlock;
using loops::Block;
using loops::Instruction;
using loops::Loop;
using loops::Op;
using loops::OpClass;
using shapes::Expr;
using shapes::ExprKind;

Emitter::Emitter(llvm::Module& module, const Schedule& schedule, bool locations)
    : module_(module),
      context_(module.getContext()),
      schedule_(schedule),
      kernel_(schedule.kernel),
      b(context_),
      locations_(locations),
      known_(schedule) {
  variables_.resize(kernel_.variable_count);
  values_.resize(kernel_.value_count);
  for (const Block& block : kernel_.blocks) {
    for (const Instruction& instruction : block.code) {
      if (instruction.result == loops::kNoValue) continue;
      values_[instruction.result].dtype = instruction.dtype;
      const bool plain_load = instruction.op == Op::Load && instruction.operands[0] == loops::kNoValue;
      values_[instruction.result].is_bf16 =
          instruction.op == Op::RoundBF16 ||
          (plain_load && kernel_.buffers[static_cast<size_t>(instruction.buffer)].dtype == loops::Dtype::BF16);
    }
  }
}

void Emitter::run() {
  Type* pointer = b.getPtrTy();
  Type* i64 = b.getInt64Ty();
  auto* type = llvm::FunctionType::get(b.getVoidTy(), {pointer, pointer, i64, i64}, false);
  function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, kEntryName, module_);
  function_->setDoesNotThrow();
  function_->addFnAttr("prefer-vector-width", "512");
  function_->addFnAttr("min-legal-vector-width", "512");
  if (schedule_.machine.masks) function_->addFnAttr(kScalesByPowers);
  function_->addFnAttr("no-trapping-math", "true");
  function_->addFnAttr("denormal-fp-math", "ieee,ieee");
  BasicBlock* entry = BasicBlock::Create(context_, "entry", function_);
  BasicBlock* body = BasicBlock::Create(context_, "body", function_);
  exit_ = BasicBlock::Create(context_, "exit", function_);
  b.SetInsertPoint(entry);
  if (locations_) start_locations();
  emit_prologue();
  b.CreateBr(body);
  b.SetInsertPoint(body);
  emit_range();
  b.CreateBr(exit_);
  b.SetInsertPoint(exit_);
  // Such stores are seen in any order by other threads, unless told.
  const bool streams =
      std::find(schedule_.streamed.begin(), schedule_.streamed.end(), true) != schedule_.streamed.end();
  if (streams) b.CreateIntrinsic(llvm::Intrinsic::x86_sse_sfence, {}, {});
  b.CreateRetVoid();
}

void Emitter::start_locations() {
  llvm::DIBuilder builder(module_);
  llvm::DIFile* file = builder.createFile("kernel", "");
  builder.createCompileUnit(llvm::dwarf::DW_LANG_C, file, "magneto", true, "", 0, "",
                            llvm::DICompileUnit::DebugDirectivesOnly);
  function_->setSubprogram(builder.createFunction(
      file, kEntryName, kEntryName, file, 0, builder.createSubroutineType(builder.getOrCreateTypeArray({})), 0,
      llvm::DINode::FlagZero, llvm::DISubprogram::SPFlagDefinition | llvm::DISubprogram::SPFlagOptimized));
  builder.finalize();
  module_.addModuleFlag(llvm::Module::Warning, "Debug Info Version", llvm::DEBUG_METADATA_VERSION);
  // Loops and addresses belong to no value.
  b.SetCurrentDebugLocation(llvm::DILocation::get(context_, 0, 0, function_->getSubprogram()));
}

void Emitter::emit_prologue() {
  Value* pointers = function_->getArg(0);
  unsigned argument = 0;
  for (const loops::Buffer& buffer : kernel_.buffers) {
    if (buffer.role == loops::Role::Scratch) {
      auto* type = llvm::ArrayType::get(memory_type(buffer.dtype),
                                        static_cast<uint64_t>(std::max<int64_t>(1, buffer.size.number())));
      llvm::AllocaInst* memory = b.CreateAlloca(type);
      memory->setAlignment(llvm::Align(64));
      buffers_.push_back({memory});
    } else {
      buffers_.push_back({b.CreateLoad(b.getPtrTy(), b.CreateConstGEP1_64(b.getPtrTy(), pointers, argument++))});
    }
  }
  if (kernel_.may_raise()) {
    error_ = b.CreateLoad(b.getPtrTy(), b.CreateConstGEP1_64(b.getPtrTy(), pointers, argument));
  }
  for (size_t i = 0; i < kernel_.symbols.size(); ++i) {
    symbols_.push_back(b.CreateLoad(b.getInt64Ty(), b.CreateConstGEP1_64(b.getInt64Ty(), function_->getArg(1), i)));
  }
  find_streams();
}

/// A result that lies where an operand does is in the cache already: it is written the plain way.
void Emitter::find_streams() {
  for (size_t out = 0; out < schedule_.streamed.size(); ++out) {
    if (!schedule_.streamed[out]) continue;
    const loops::Buffer& buffer = kernel_.buffers[out];
    Value* apart = b.getTrue();
    if (!buffer.size.is_constant()) {
      const int64_t least = schedule_.machine.stream_bytes / loops::dtype_bytes(buffer.dtype);
      apart = b.CreateICmpSGE(uniform(buffer.size), b.getInt64(static_cast<uint64_t>(least)));
    }
    for (size_t in = 0; in < kernel_.buffers.size(); ++in) {
      if (kernel_.buffers[in].role == loops::Role::In) {
        apart = b.CreateAnd(apart, b.CreateICmpNE(buffers_[in].pointer, buffers_[out].pointer));
      }
    }
    buffers_[out].streams = apart;
  }
}

BasicBlock* Emitter::new_block(const char* name) { return BasicBlock::Create(context_, name, function_); }

llvm::Value* Emitter::stack_slot(Type* type) {
  llvm::IRBuilder<> entry(&function_->getEntryBlock(), function_->getEntryBlock().begin());
  return entry.CreateAlloca(type);
}

void Emitter::emit_range() {
  Value* begin = function_->getArg(2);
  Value* end = function_->getArg(3);
  if (schedule_.tile.stage.variable >= 0) {
    emit_strips(begin, end);
  } else if (schedule_.tile) {
    emit_tiles(begin, end);
  } else if (schedule_.rows.variable >= 0) {
    emit_rows_across(begin, end);
  } else {
    emit_rows_within(begin, end);
  }
}

/// The variables of flattened loops, the last one fastest.
void Emitter::decompose(Value* flat, const std::vector<Loop>& loops) {
  for (size_t i = loops.size(); i-- > 0;) {
    if (i == 0) {
      variables_[loops[i].variable] = flat;
      return;
    }
    Value* extent = uniform(loops[i].extent);
    variables_[loops[i].variable] = b.CreateURem(flat, extent);
    flat = b.CreateUDiv(flat, extent);
  }
}

void Emitter::emit_loop(Value* begin, Value* end, int64_t step, const std::function<void(Value*)>& body) {
  const auto* first = llvm::dyn_cast<llvm::ConstantInt>(begin);
  const auto* last = llvm::dyn_cast<llvm::ConstantInt>(end);
  if (first && last && last->getSExtValue() > first->getSExtValue() &&
      last->getSExtValue() - first->getSExtValue() <= step) {
    return body(begin);
  }
  Value* slot = stack_slot(b.getInt64Ty());
  b.CreateStore(begin, slot);
  BasicBlock* head = new_block("head");
  BasicBlock* inside = new_block("inside");
  BasicBlock* after = new_block("after");
  b.CreateBr(head);
  b.SetInsertPoint(head);
  Value* i = b.CreateLoad(b.getInt64Ty(), slot);
  b.CreateCondBr(b.CreateICmpSLT(i, end), inside, after);
  b.SetInsertPoint(inside);
  body(i);
  b.CreateStore(b.CreateNSWAdd(i, b.getInt64(static_cast<uint64_t>(step))), slot);
  b.CreateBr(head);
  b.SetInsertPoint(after);
}

/// Whole vectors first, then what is left: by masked vectors, or one by one. `count`: iterations, where they are known.
void Emitter::emit_lane_loop(const Loop& loop, const codegen::Lanes& lanes, Value* begin, Value* end,
                             const std::function<void()>& body, int64_t count) {
  const Lanes outside = lanes_;
  const auto whole = [&](Value* from, Value* to, unsigned width) {
    emit_loop(from, to, width, [&](Value* i) {
      variables_[loop.variable] = i;
      if (schedule_.first_lane >= 0) variables_[schedule_.first_lane] = i;
      lanes_ = {width, width > 1 ? loop.variable : -1, nullptr};
      body();
    });
  };
  const auto* first = llvm::dyn_cast<llvm::ConstantInt>(begin);
  const auto* last = llvm::dyn_cast<llvm::ConstantInt>(end);
  if (first && last) count = last->getSExtValue() - first->getSExtValue();
  const auto wide = static_cast<unsigned>(lanes.wide), narrow = static_cast<unsigned>(lanes.narrow);
  Value* middle = begin;
  if (count < 0 || count >= lanes.wide) {
    // The last start of a whole vector, plus one: begin <= i <= end - wide.
    Value* span = b.CreateSub(end, begin);
    Value* vectors = b.CreateAnd(span, b.getInt64(~static_cast<uint64_t>(wide - 1)));
    middle = b.CreateAdd(begin, vectors);
    whole(begin, middle, wide);
  }
  if (count < 0 || count % lanes.wide != 0) {
    if (narrow == 1 || (count >= 0 && count % lanes.wide % narrow == 0)) {
      whole(middle, end, narrow);
    } else {
      emit_loop(middle, end, narrow, [&](Value* i) {
        variables_[loop.variable] = i;
        if (schedule_.first_lane >= 0) variables_[schedule_.first_lane] = i;
        lanes_ = {narrow, loop.variable, nullptr};
        if (const auto* at = llvm::dyn_cast<llvm::ConstantInt>(i); at && last) {
          std::vector<llvm::Constant*> there;
          for (unsigned k = 0; k < narrow; ++k)
            there.push_back(b.getInt1(at->getSExtValue() + k < last->getSExtValue()));
          lanes_.mask = llvm::ConstantVector::get(there);
          return body();
        }
        // i32 lane numbers: one register.
        Value* left = b.CreateTrunc(
            b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b.CreateSub(end, i), b.getInt64(narrow)), b.getInt32Ty());
        lanes_.mask = b.CreateICmpULT(lane_numbers(b.getInt32Ty(), narrow), splat(left, narrow));
        body();
      });
    }
  }
  lanes_ = outside;
}

/// Runs of rows that differ only in the last parallel loop's variable: what the others give is computed once for each.
void Emitter::emit_runs(Value* begin, Value* end, const std::function<void(Value*, Value*)>& run) {
  const std::vector<Loop>& loops = kernel_.parallel;
  if (loops.empty()) return emit_loop(begin, end, 1, [&](Value* flat) { run(flat, nullptr); });
  if (loops.size() == 1) return run(begin, end);
  Value* slot = stack_slot(b.getInt64Ty());
  b.CreateStore(begin, slot);
  BasicBlock* head = new_block("rows");
  BasicBlock* inside = new_block("row");
  BasicBlock* after = new_block("done");
  b.CreateBr(head);
  b.SetInsertPoint(head);
  Value* flat = b.CreateLoad(b.getInt64Ty(), slot);
  b.CreateCondBr(b.CreateICmpSLT(flat, end), inside, after);
  b.SetInsertPoint(inside);
  decompose(flat, loops);
  Value* extent = uniform(loops.back().extent);
  Value* start = variables_[loops.back().variable];
  Value* length = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b.CreateSub(extent, start), b.CreateSub(end, flat));
  run(start, b.CreateAdd(start, length));
  b.CreateStore(b.CreateAdd(flat, length), slot);
  b.CreateBr(head);
  b.SetInsertPoint(after);
}

/// Lanes along the last parallel loop.
void Emitter::emit_rows_across(Value* begin, Value* end) {
  emit_runs(begin, end, [&](Value* start, Value* stop) {
    emit_lane_loop(kernel_.parallel.back(), schedule_.rows, start, stop, [&] { emit_blocks(); });
  });
}

void Emitter::emit_rows_within(Value* begin, Value* end) {
  lanes_ = {};
  const auto row = [&] {
    known_.clear();
    emit_blocks();
  };
  emit_runs(begin, end, [&](Value* start, Value* stop) {
    if (kernel_.parallel.empty()) return row();
    emit_loop(start, stop, 1, [&](Value* i) {
      variables_[kernel_.parallel.back().variable] = i;
      row();
    });
  });
}

void Emitter::emit_blocks() {
  for (size_t i = 0; i < kernel_.blocks.size(); ++i) emit_block(i);
}

/// For each instruction how many of the stage's loops are around it, so that it runs as seldom as it may.
std::vector<size_t> Emitter::depths_of(const Block& block) const {
  std::vector<size_t> by_value(kernel_.value_count, 0), result;
  std::vector<bool> stored(kernel_.buffers.size(), false);
  bool adds = false;
  for (const Instruction& instruction : block.code) {
    if (instruction.op == Op::Store || instruction.op == Op::StoreAdd) stored[instruction.buffer] = true;
    adds |= instruction.op == Op::StoreAdd;
  }
  // What is added to is no other buffer's memory: iterations touch elements of each other's.
  const bool in_order = loops::runs_in_order(block) && !adds;
  for (const Instruction& instruction : block.code) {
    size_t depth = 0;
    const auto use = [&](loops::ValueId id) {
      if (id != loops::kNoValue) depth = std::max(depth, by_value[id]);
    };
    for (const loops::ValueId operand : instruction.operands) use(operand);
    shapes::any_leaf(instruction.index, [&](Expr leaf) {
      if (leaf.kind() == ExprKind::Value) use(leaf.id());
      for (size_t i = 0; i < block.loops.size(); ++i) {
        if (leaf == Expr::variable(block.loops[i].variable)) depth = std::max(depth, i + 1);
      }
      return false;
    });
    const OpClass op_class = loops::facts(instruction.op).op_class;
    const bool stays = op_class == OpClass::Reduce || op_class == OpClass::Scan || instruction.op == Op::Store ||
                       instruction.op == Op::StoreAdd ||
                       (instruction.op == Op::Load && (stored[instruction.buffer] || in_order));
    if (stays) depth = block.loops.size();
    if (instruction.result != loops::kNoValue && op_class != OpClass::Reduce) by_value[instruction.result] = depth;
    result.push_back(depth);
  }
  return result;
}

void Emitter::emit_block(size_t number) {
  const Block& block = kernel_.blocks[number];
  if (!block.is_stage()) {
    for (const Instruction& instruction : block.code) emit_instruction(instruction);
    read_ahead(number);
    return;
  }
  start_reductions(block, widths_of(number));
  known_.enter(number);
  // Instructions leave loops that they do not depend on; so the stage must have iterations before any of them runs.
  Value* some = nullptr;
  for (const Loop& loop : block.loops) {
    if (loop.extent.is_constant() && loop.extent.number() > 0) continue;
    Value* positive = b.CreateICmpSGT(uniform(loop.extent), b.getInt64(0));
    some = some ? b.CreateAnd(some, positive) : positive;
  }
  BasicBlock* after = nullptr;
  if (some) {
    BasicBlock* inside = new_block("stage");
    after = new_block("behind");
    b.CreateCondBr(some, inside, after);
    b.SetInsertPoint(inside);
  }
  depths_ = depths_of(block);
  const bool parts =
      std::any_of(block.code.begin(), block.code.end(), [](const Instruction& i) { return i.op == Op::ReduceSumWide; });
  parts_depth_ = parts ? parts_depth(number) : block.loops.size() + 1;
  emit_level(number, 0);
  if (after) {
    b.CreateBr(after);
    b.SetInsertPoint(after);
  }
  known_.leave();
  finish_reductions(block);
}

void Emitter::emit_level(size_t number, size_t depth) {
  const Block& block = kernel_.blocks[number];
  for (size_t i = 0; i < block.code.size(); ++i) {
    if (depths_[i] == depth) emit_instruction(block.code[i]);
  }
  if (depth == block.loops.size()) {
    read_ahead(number);
    return;
  }
  const Loop& loop = block.loops[depth];
  const codegen::Lanes& stage = schedule_.stages[number];
  const auto emit = [&](Value* begin, Value* end, int64_t count = -1) {
    if (stage.variable == loop.variable) {
      emit_lane_loop(loop, stage, begin, end, [&] { emit_level(number, depth + 1); }, count);
    } else {
      emit_loop(begin, end, 1, [&](Value* i) {
        variables_[loop.variable] = i;
        emit_level(number, depth + 1);
      });
    }
  };
  Value* begin = b.getInt64(0);
  Value* end = uniform(loop.extent);
  if (parts_depth_ == block.loops.size() && depth + 1 == parts_depth_) {
    const int64_t part = kPart * (stage.variable == loop.variable ? stage.wide : 1);
    Value* length = b.getInt64(static_cast<uint64_t>(part));
    Value* whole = uniform(shapes::floor_div(loop.extent, part) * part);
    emit_loop(begin, whole, part, [&](Value* i) {
      emit(i, b.CreateAdd(i, length), part);
      add_parts(block);
    });
    if (loop.extent.is_constant() && loop.extent.number() % part == 0) return;
    emit(whole, end);
    return add_parts(block);
  }
  emit(begin, end);
  if (parts_depth_ == depth && !one_part(lanes_.width > 1)) add_parts(block);
}

}  // namespace magneto::codegen
