// The loop IR: what one fused kernel computes. docs/loops.md explains it with examples.
//
//   kernel "softmax" {
//     b0 in f32[65536]
//     b1 out f32[65536]
//     parallel i0 < 64              the iterations may run in any order, on any thread
//     stage i1 < 1024 {             one after another, for each parallel iteration
//       %0:f32 = load b0[1024*i0 + i1]
//       %1:f32 = reduce.max %0      exists behind the stage
//     }
//     ...
//   }
//
// This folder knows neither Python nor PyTorch nor LLVM. It is compiled into the core and into the code generator.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shapes/expr.h"

namespace magneto::loops {

using shapes::Expr;

enum class Dtype : uint8_t {
#define X(name, text, type, bytes, class) name,
#include "loops/dtypes.def"
#undef X
};
enum class DtypeClass : uint8_t { Float, Integer, Bool };

std::string_view dtype_text(Dtype dtype);
int64_t dtype_bytes(Dtype dtype);
DtypeClass dtype_class(Dtype dtype);
inline bool is_float(Dtype dtype) { return dtype_class(dtype) == DtypeClass::Float; }
/// The dtype in which a kernel computes with elements of `dtype`: f32 for bf16 and f16, else itself.
Dtype value_dtype(Dtype dtype);

enum class Op : uint8_t {
#define X(name, text, class, operands, dtypes) name,
#include "loops/ops.def"
#undef X
};
enum class OpClass : uint8_t { Special, Math, Compare, Reduce, Scan };

struct OpFacts {
  std::string_view text;
  OpClass op_class;
  int operands;  // of Load, Store, StoreAdd and Bounds: at most
  std::string_view dtypes;
};
const OpFacts& facts(Op op);

/// A value, by number; each is defined once. Numbers are dense, so that tables over values are vectors.
using ValueId = int32_t;
/// A buffer, by its position in Kernel::buffers.
using BufferId = int32_t;
inline constexpr ValueId kNoValue = -1;

enum class Role : uint8_t {
  In,
  Out,  // written in full before it is read
  InOut,
  Scratch,  // private to one parallel iteration: no argument; its size is a number, at most kScratchBytes
};
inline constexpr int64_t kScratchBytes = 64 * 1024;

/// Memory that a kernel reads or writes: a pointer argument. The pointer is to element 0 of the index expressions,
/// which count elements; strides and offset are in the expressions. Two buffers may be the same memory if each parallel
/// iteration and each stage iteration touches the element at no other index than the one it writes there.
struct Buffer {
  Dtype dtype;
  Role role;
  Expr size;         // indices are in [0, size)
  std::string name;  // for people; may be empty
};

/// A number that each run gives: a size, or an int of the program, which may be negative.
struct Symbol {
  int32_t id;  // Expr::symbol(id)
  shapes::Range range = kSizes;
  static constexpr shapes::Range kSizes{0, INT64_MAX};
};

struct Loop {
  int32_t variable;  // Expr::variable(variable); distinct in a kernel
  Expr extent;       // of symbols; in a stage of parallel variables too. Below one: no iteration
};

struct Instruction {
  Op op;
  /// The result's dtype. Of a store: the stored value's.
  Dtype dtype = Dtype::F32;
  ValueId result = kNoValue;
  /// Load: {mask, other} or none. Store, StoreAdd: {value, mask or none}. Bounds: {index, mask or none}.
  std::array<ValueId, 3> operands = {kNoValue, kNoValue, kNoValue};
  /// Load, Store, StoreAdd.
  BufferId buffer = -1;
  /// Load, Store, StoreAdd: the element. Index: the result. Bounds: the size. Of symbols, variables in scope and
  /// integer values in scope.
  Expr index;
  /// Constant: the number of a float dtype; of the others `integer` is it (bool: 0 or 1).
  double number = 0;
  int64_t integer = 0;
  /// Bounds: the error, with {index} and {size} standing for the numbers.
  int32_t message = -1;
};

/// Instructions at one level. Without loops: once for each parallel iteration ("row"). With loops: a stage, the loops
/// nested in this order, all instructions innermost.
struct Block {
  std::vector<Loop> loops;
  std::vector<Instruction> code;
  bool is_stage() const { return !loops.empty(); }
};

struct Kernel {
  std::string name;
  /// The operators and source lines that it came from: `aten.add.Tensor at model.py:12 in forward`.
  std::vector<std::string> origins;
  /// In the order of the `symbols` argument.
  std::vector<Symbol> symbols;
  std::vector<Buffer> buffers;
  std::vector<Loop> parallel;
  std::vector<Block> blocks;
  std::vector<std::string> messages;
  int32_t value_count = 0;
  int32_t variable_count = 0;

  bool may_raise() const { return !messages.empty(); }
  /// The symbol's position in `symbols`, which has it.
  size_t position_of(int32_t symbol) const;
  /// What is known of a symbol in an expression.
  shapes::Range range_of(Expr symbol) const { return symbols[position_of(symbol.id())].range; }
};

/// Text form; `parse(print(kernel))` is the same kernel. Without names and origins (`bare`) it says only what the
/// machine code depends on: the key of deduplication and of caches.
std::string print(const Kernel& kernel, bool bare = false);
/// Errors are std::invalid_argument that name line and column.
Kernel parse(std::string_view text);
/// One line per broken invariant; empty for a kernel that the code generator and the interpreter accept.
std::vector<std::string> verify(const Kernel& kernel);

/// Puts a kernel together: each function appends an instruction to the last block and returns its value. Dtypes of
/// results follow from the operands.
class Builder {
 public:
  explicit Builder(std::string name);

  Expr symbol(int32_t id, shapes::Range range = Symbol::kSizes);
  BufferId buffer(Dtype dtype, Role role, Expr size, std::string name = {});
  /// The variable of a new parallel loop, inside those before.
  Expr parallel(Expr extent);
  /// Starts a stage (or, without extents, code at row level) and returns its variables.
  std::vector<Expr> stage(const std::vector<Expr>& extents);
  void row() { stage({}); }

  ValueId constant(Dtype dtype, double number);
  ValueId constant_int(Dtype dtype, int64_t number);
  ValueId index(Expr expr);
  ValueId load(BufferId buffer, Expr index, ValueId mask = kNoValue, ValueId other = kNoValue);
  void store(BufferId buffer, Expr index, ValueId value, ValueId mask = kNoValue);
  void store_add(BufferId buffer, Expr index, ValueId value, ValueId mask = kNoValue);
  ValueId cast(Dtype dtype, ValueId value);
  ValueId bounds(ValueId index, Expr size, std::string message, ValueId mask = kNoValue);
  ValueId select(ValueId condition, ValueId a, ValueId b);
  /// Math, Compare, Reduce and Scan ops, and WelfordM2.
  ValueId op(Op op, ValueId a, ValueId b = kNoValue, ValueId c = kNoValue);

  Dtype dtype(ValueId value) const { return dtypes_.at(value); }
  /// The buffer is written as well as read.
  void written(BufferId buffer) {
    if (kernel_.buffers[buffer].role == Role::In) kernel_.buffers[buffer].role = Role::InOut;
  }
  void origin(std::string text) { kernel_.origins.push_back(std::move(text)); }
  Kernel take() { return std::move(kernel_); }

 private:
  ValueId append(Instruction instruction);
  Block& block();

  Kernel kernel_;
  std::vector<Dtype> dtypes_;
};

}  // namespace magneto::loops
