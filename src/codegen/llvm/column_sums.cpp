#include "codegen/llvm/column_sums.h"

#include <algorithm>
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

bool is_column_sum(const Kernel& kernel) {
  if (kernel.parallel.empty() || kernel.blocks.empty() || !kernel.blocks[0].is_stage()) return false;
  if (std::any_of(kernel.blocks.begin() + 1, kernel.blocks.end(), [](const Block& b) { return b.is_stage(); })) {
    return false;
  }
  const Expr columns = Expr::variable(kernel.parallel.back().variable), extent = kernel.parallel.back().extent;
  if (!extent.is_constant() || extent.number() < 2 * kShortest) return false;
  bool sums = false;
  int elements = 0;
  for (const Instruction& instruction : kernel.blocks[0].code) {
    const OpClass op_class = loops::facts(instruction.op).op_class;
    if (op_class == OpClass::Scan || (op_class == OpClass::Reduce && !is_sum(instruction))) return false;
    if (!is_smooth(instruction, columns)) return false;
    sums |= is_sum(instruction);
    elements += is_element(instruction, kernel.blocks[0], columns);
  }
  return sums && elements >= kFewest;
}

int64_t strip_length(int64_t columns) {
  return std::clamp((columns / kStrips + kShortest - 1) / kShortest * kShortest, kShortest, kLongest);
}

class Strips {
 public:
  explicit Strips(Kernel& kernel) : kernel_(kernel), dtypes_(static_cast<size_t>(kernel.value_count)) {
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
    Block start = stage(), work = kernel_.blocks[0], end = stage();
    place_ = Expr::variable(start.loops[0].variable);
    for (const Instruction& instruction : work.code) {
      if (is_sum(instruction)) start_sum(instruction, start);
    }
    work.code.clear();
    work.loops.push_back(stage().loops[0]);
    place_ = Expr::variable(work.loops.back().variable);
    for (const Instruction& instruction : kernel_.blocks[0].code) {
      is_sum(instruction) ? add_to_sum(instruction, work) : work.code.push_back(in_place(instruction));
    }
    place_ = Expr::variable(end.loops[0].variable);
    for (const Instruction& instruction : kernel_.blocks[0].code) {
      if (is_sum(instruction)) end.code.push_back(load(instruction, instruction.result));
    }
    for (size_t i = 1; i < kernel_.blocks.size(); ++i) {
      for (const Instruction& instruction : kernel_.blocks[i].code) end.code.push_back(in_place(instruction));
    }
    kernel_.blocks = {std::move(start), std::move(work), std::move(end)};
  }

 private:
  struct Sum {
    ValueId value;
    BufferId scratch;
  };

  Block stage() { return {{{kernel_.variable_count++, in_strip_}}, {}}; }

  void start_sum(const Instruction& sum, Block& start) {
    sums_.push_back({sum.result, static_cast<BufferId>(kernel_.buffers.size())});
    kernel_.buffers.push_back({sum.dtype, loops::Role::Scratch, length_, {}});
    Instruction zero{.op = Op::Constant, .dtype = sum.dtype, .result = kernel_.value_count++};
    start.code.push_back(zero);
    start.code.push_back(store(sum, zero.result));
  }

  void add_to_sum(const Instruction& sum, Block& work) {
    ValueId term = sum.operands[0];
    const Instruction before = load(sum, kernel_.value_count++);
    work.code.push_back(before);
    if (dtypes_[static_cast<size_t>(term)] != sum.dtype) {
      Instruction cast{.op = Op::Cast, .dtype = sum.dtype, .result = kernel_.value_count++};
      cast.operands[0] = term;
      term = cast.result;
      work.code.push_back(cast);
    }
    Instruction add{.op = Op::Add, .dtype = sum.dtype, .result = kernel_.value_count++};
    add.operands = {before.result, term, loops::kNoValue};
    work.code.push_back(add);
    work.code.push_back(store(sum, add.result));
  }

  Instruction load(const Instruction& sum, ValueId result) const {
    return {.op = Op::Load, .dtype = sum.dtype, .result = result, .buffer = scratch_of(sum), .index = place_};
  }

  Instruction store(const Instruction& sum, ValueId value) const {
    Instruction result{.op = Op::Store, .dtype = sum.dtype, .buffer = scratch_of(sum), .index = place_};
    result.operands[0] = value;
    return result;
  }

  BufferId scratch_of(const Instruction& sum) const {
    return std::find_if(sums_.begin(), sums_.end(), [&](const Sum& s) { return s.value == sum.result; })->scratch;
  }

  /// The instruction at the column of the strip that the current stage is at.
  Instruction in_place(Instruction instruction) const {
    instruction.index = shapes::substitute(instruction.index, [&](Expr leaf) -> std::optional<Expr> {
      if (leaf == Expr::variable(column_)) return length_ * strip_ + place_;
      return std::nullopt;
    });
    return instruction;
  }

  Kernel& kernel_;
  std::vector<Dtype> dtypes_;
  std::vector<Sum> sums_;
  int32_t column_ = -1;
  int64_t length_ = 0;
  Expr strip_ = 0, in_strip_ = 0, place_ = 0;
};

}  // namespace

bool sum_in_strips(Kernel& kernel) {
  if (!is_column_sum(kernel)) return false;
  Strips(kernel).make();
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
