#include "codegen/llvm/column_sums.h"

#include <algorithm>
#include <map>
#include <optional>

namespace magneto::codegen {
namespace {

using loops::Block;
using loops::BufferId;
using loops::Dtype;
using loops::Expr;
using loops::Instruction;
using loops::Kernel;
using loops::Op;
using loops::OpClass;
using loops::ValueId;
using shapes::ExprKind;

/// Columns of a strip: at most so many, so that all sums stay in the first cache, and at least so many, so that what is
/// read of a row is worth going there.
constexpr int64_t kLongest = 256, kShortest = 64;
/// Strips that there should be, for the sake of threads.
constexpr int64_t kStrips = 8;
/// Of so many rows at once, at least, elements are loaded or stored. Those of one are summed in registers more quickly.
constexpr int kFewest = 2;
/// How far ahead rows are asked for.
constexpr int64_t kAheadBytes = 1024;

bool is_sum(const Instruction& instruction) {
  return (instruction.op == Op::ReduceSum || instruction.op == Op::ReduceSumWide) && loops::is_float(instruction.dtype);
}

/// Whether the lanes along `columns` access neighbours, or one element.
bool is_smooth(const Instruction& instruction, Expr columns) {
  if (instruction.op == Op::StoreAdd) return false;
  if (instruction.op != Op::Load && instruction.op != Op::Store) return true;
  if (shapes::any_leaf(instruction.index, [](Expr leaf) { return leaf.kind() == ExprKind::Value; })) return false;
  const auto along = shapes::linear_in(instruction.index, columns);
  return along && (along->coefficient.is_constant(0) || along->coefficient.is_constant(1));
}

/// It accesses an element of its own in each row and column.
bool is_element(const Instruction& instruction, const Block& stage, Expr columns) {
  if (instruction.op != Op::Load && instruction.op != Op::Store) return false;
  return shapes::depends_on(instruction.index, columns) &&
         std::any_of(stage.loops.begin(), stage.loops.end(), [&](const loops::Loop& loop) {
           return shapes::depends_on(instruction.index, Expr::variable(loop.variable));
         });
}

/// The stage's position, behind what is computed once a column; none for kernels that are no such sums.
std::optional<size_t> find_column_sum(const Kernel& kernel) {
  if (kernel.parallel.empty()) return std::nullopt;
  const auto is_stage = [](const Block& block) { return block.is_stage(); };
  const auto stage = std::find_if(kernel.blocks.begin(), kernel.blocks.end(), is_stage);
  if (stage == kernel.blocks.end() || std::any_of(stage + 1, kernel.blocks.end(), is_stage)) return std::nullopt;
  const Expr columns = Expr::variable(kernel.parallel.back().variable), extent = kernel.parallel.back().extent;
  if (!extent.is_constant() || extent.number() < 2 * kShortest) return std::nullopt;
  bool sums = false;
  int elements = 0;
  for (auto block = kernel.blocks.begin(); block <= stage; ++block) {
    for (const Instruction& instruction : block->code) {
      const OpClass op_class = loops::facts(instruction.op).op_class;
      if (op_class == OpClass::Scan || (op_class == OpClass::Reduce && !is_sum(instruction))) return std::nullopt;
      if (!is_smooth(instruction, columns)) return std::nullopt;
      sums |= is_sum(instruction);
      elements += is_element(instruction, *stage, columns);
    }
  }
  if (!sums || elements < kFewest) return std::nullopt;
  return stage - kernel.blocks.begin();
}

int64_t strip_length(int64_t columns) {
  return std::clamp((columns / kStrips + kShortest - 1) / kShortest * kShortest, kShortest, kLongest);
}

class Strips {
 public:
  Strips(Kernel& kernel, size_t stage)
      : kernel_(kernel), stage_(stage), dtypes_(static_cast<size_t>(kernel.value_count)) {
    for (const Block& block : kernel.blocks) {
      for (const Instruction& instruction : block.code) {
        if (instruction.result != loops::kNoValue) dtypes_[static_cast<size_t>(instruction.result)] = instruction.dtype;
      }
    }
  }

  void make() {
    loops::Loop& columns = kernel_.parallel.back();
    column_ = columns.variable;
    length_ = strip_length(columns.extent.number());
    strip_ = Expr::variable(kernel_.variable_count);
    in_strip_ = columns.extent.number() % length_ == 0 ? Expr(length_)
                                                       : shapes::min(length_, columns.extent - length_ * strip_);
    columns = {kernel_.variable_count++, shapes::ceil_div(columns.extent, length_)};
    Block start = stage(), work = kernel_.blocks[stage_], end = stage();
    work.code.clear();
    work.loops.push_back(stage().loops[0]);
    place_ = Expr::variable(start.loops[0].variable);
    for (size_t i = 0; i < stage_; ++i) {
      for (const Instruction& instruction : kernel_.blocks[i].code) keep(instruction, start);
    }
    for (const Instruction& instruction : kernel_.blocks[stage_].code) {
      if (is_sum(instruction)) start_sum(instruction, start);
    }
    enter(work);
    for (const Instruction& instruction : kernel_.blocks[stage_].code) {
      is_sum(instruction) ? add_to_sum(instruction, work) : work.code.push_back(in_place(instruction));
    }
    enter(end);
    for (const Instruction& instruction : kernel_.blocks[stage_].code) {
      if (is_sum(instruction)) end.code.push_back(load(instruction, instruction.result));
    }
    for (size_t i = stage_ + 1; i < kernel_.blocks.size(); ++i) {
      for (const Instruction& instruction : kernel_.blocks[i].code) end.code.push_back(in_place(instruction));
    }
    kernel_.blocks = {std::move(start), std::move(work), std::move(end)};
  }

 private:
  /// A sum, or a value of each column: it waits in scratch memory.
  struct Waiting {
    ValueId value;
    Dtype dtype;
    BufferId scratch;
  };

  Block stage() { return {{{kernel_.variable_count++, in_strip_}}, {}}; }

  BufferId scratch(Dtype dtype) {
    kernel_.buffers.push_back({dtype, loops::Role::Scratch, length_, {}});
    return static_cast<BufferId>(kernel_.buffers.size()) - 1;
  }

  /// What is computed once a column.
  void keep(const Instruction& instruction, Block& start) {
    start.code.push_back(in_place(instruction));
    if (instruction.op == Op::Constant) {
      constants_.push_back(instruction);
    } else if (instruction.result != loops::kNoValue) {
      columns_.push_back({instruction.result, instruction.dtype, scratch(instruction.dtype)});
      start.code.push_back(store(columns_.back(), instruction.result));
    }
  }

  /// Another stage begins: what is computed once a column has other numbers there.
  void enter(Block& block) {
    place_ = Expr::variable(block.loops.back().variable);
    names_.clear();
    for (Instruction constant : constants_) {
      names_[constant.result] = kernel_.value_count;
      constant.result = kernel_.value_count++;
      block.code.push_back(constant);
    }
    for (const Waiting& column : columns_) {
      names_[column.value] = kernel_.value_count;
      block.code.push_back(load(column, kernel_.value_count++));
    }
  }

  void start_sum(const Instruction& sum, Block& start) {
    sums_.push_back({sum.result, sum.dtype, scratch(sum.dtype)});
    Instruction zero{.op = Op::Constant, .dtype = sum.dtype, .result = kernel_.value_count++};
    start.code.push_back(zero);
    start.code.push_back(store(sums_.back(), zero.result));
  }

  void add_to_sum(const Instruction& sum, Block& work) {
    ValueId term = named(sum.operands[0]);
    const Instruction before = load(sum, kernel_.value_count++);
    work.code.push_back(before);
    if (dtypes_[static_cast<size_t>(sum.operands[0])] != sum.dtype) {
      Instruction cast{.op = Op::Cast, .dtype = sum.dtype, .result = kernel_.value_count++};
      cast.operands[0] = term;
      term = cast.result;
      work.code.push_back(cast);
    }
    Instruction add{.op = Op::Add, .dtype = sum.dtype, .result = kernel_.value_count++};
    add.operands = {before.result, term, loops::kNoValue};
    work.code.push_back(add);
    work.code.push_back(store(waiting(sum), add.result));
  }

  Instruction load(const Waiting& from, ValueId result) const {
    return {.op = Op::Load, .dtype = from.dtype, .result = result, .buffer = from.scratch, .index = place_};
  }
  Instruction load(const Instruction& sum, ValueId result) const { return load(waiting(sum), result); }

  Instruction store(const Waiting& to, ValueId value) const {
    Instruction result{.op = Op::Store, .dtype = to.dtype, .buffer = to.scratch, .index = place_};
    result.operands[0] = value;
    return result;
  }

  const Waiting& waiting(const Instruction& sum) const {
    return *std::find_if(sums_.begin(), sums_.end(), [&](const Waiting& w) { return w.value == sum.result; });
  }

  ValueId named(ValueId value) const {
    const auto found = names_.find(value);
    return found == names_.end() ? value : found->second;
  }

  /// The instruction at the column of the strip that the current stage is at.
  Instruction in_place(Instruction instruction) const {
    for (ValueId& operand : instruction.operands) operand = named(operand);
    instruction.index = shapes::substitute(instruction.index, [&](Expr leaf) -> std::optional<Expr> {
      if (leaf == Expr::variable(column_)) return length_ * strip_ + place_;
      return std::nullopt;
    });
    return instruction;
  }

  Kernel& kernel_;
  const size_t stage_;
  std::vector<Dtype> dtypes_;
  std::vector<Waiting> sums_, columns_;
  std::vector<Instruction> constants_;
  std::map<ValueId, ValueId> names_;
  int32_t column_ = -1;
  int64_t length_ = 0;
  Expr strip_ = 0, in_strip_ = 0, place_ = 0;
};

}  // namespace

bool sum_in_strips(Kernel& kernel) {
  const auto stage = find_column_sum(kernel);
  if (!stage) return false;
  Strips(kernel, *stage).make();
  return true;
}

std::vector<Schedule::Ahead> ahead_in_strips(const Kernel& kernel) {
  constexpr size_t work = 1;
  const std::vector<loops::Loop>& loops = kernel.blocks[work].loops;
  const Expr row = Expr::variable(loops[loops.size() - 2].variable), column = Expr::variable(loops.back().variable);
  std::vector<Schedule::Ahead> result;
  for (const Instruction& instruction : kernel.blocks[work].code) {
    const bool accesses = instruction.op == Op::Load || instruction.op == Op::Store;
    if (!accesses || !shapes::depends_on(instruction.index, row) || !shapes::depends_on(instruction.index, column))
      continue;
    const int64_t bytes = loops::dtype_bytes(kernel.buffers[static_cast<size_t>(instruction.buffer)].dtype);
    const int64_t rows = std::max<int64_t>(1, kAheadBytes / bytes / kernel.buffers.back().size.number());
    const Expr next = shapes::substitute(instruction.index, [&](Expr leaf) -> std::optional<Expr> {
      if (leaf == row) return row + rows;
      return std::nullopt;
    });
    result.push_back({work, instruction.buffer, next});
  }
  return result;
}

}  // namespace magneto::codegen
