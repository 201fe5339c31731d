// A scheduled kernel as one LLVM function. The class is cut by subject into emit_kernel.cpp (loops), emit_code.cpp
// (instructions), emit_memory.cpp (expressions, loads, stores), emit_tile.cpp (transposes) and emit_reduce.cpp
// (reductions and scans).
#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <functional>
#include <optional>
#include <vector>

#include "codegen/llvm/known_elements.h"
#include "codegen/llvm/schedule.h"
#include "loops/ir.h"

namespace magneto::codegen {

/// The name of a kernel's function in its object file.
inline constexpr const char* kEntryName = "magneto_kernel";

class Emitter {
 public:
  /// `locations`: instructions say which value they are for, as line numbers (a value's number and one).
  Emitter(llvm::Module& module, const Schedule& schedule, bool locations = false);
  /// Adds the function to the module.
  void run();

 private:
  using Value = llvm::Value;
  using Type = llvm::Type;

  /// A value of the kernel: one number for all lanes, or one for each.
  struct Register {
    Value* value = nullptr;
    bool varying = false;
  };
  /// The lanes that instructions are emitted for now.
  struct Lanes {
    unsigned width = 1;
    int32_t variable = -1;
    Value* mask = nullptr;  // which lanes are there at all; null: all
  };
  /// The running state of one reduction for one lane layout: 1 to 3 memory slots that become registers.
  struct Accumulator {
    unsigned width = 1;
    std::vector<Value*> slots;
  };
  /// A reduction or a scan.
  struct Reduction {
    std::vector<Accumulator> layouts;  // of the current stage (wide, narrow)
    std::vector<Value*> welford;       // the finished state
    bool welford_varies = false;
  };
  /// A value's number: what it is, and what was emitted for it.
  struct Number {
    loops::Dtype dtype = {};
    bool is_bf16 = false;  // a number of bf16, in f32
    Register reg;
    Reduction reduction;
  };
  struct Buffer {
    Value* pointer;
    Value* streams = nullptr;  // i1: may be written around the cache; null: never
  };

  // emit_kernel.cpp
  void emit_prologue();
  void find_streams();
  void emit_range();
  void emit_runs(Value* begin, Value* end, const std::function<void(Value*, Value*)>& run);
  void emit_rows_across(Value* begin, Value* end);
  void emit_rows_within(Value* begin, Value* end);
  // emit_tile.cpp
  void emit_tiles(Value* begin, Value* end);
  void emit_strips(Value* begin, Value* end);
  void emit_sides(Value* flat);
  void emit_side_loops(int32_t without, const std::function<void()>& body);
  void read_tile_ahead(const Tile::Turned& load, Value* row);
  void emit_turned(const Tile::Turned& turned, bool store);
  void decompose(Value* flat, const std::vector<loops::Loop>& loops);
  void emit_blocks();
  void emit_block(size_t number);
  void emit_level(size_t number, size_t depth);
  /// `for (i = begin; i < end; i += step) body(i)`, of signed i64.
  void emit_loop(Value* begin, Value* end, int64_t step, const std::function<void(Value*)>& body);
  void emit_lane_loop(const loops::Loop& loop, const codegen::Lanes& lanes, Value* begin, Value* end,
                      const std::function<void()>& body, int64_t count = -1);
  llvm::BasicBlock* new_block(const char* name);
  Value* stack_slot(Type* type);
  std::vector<size_t> depths_of(const loops::Block& block) const;

  /// A scope for line numbers.
  void start_locations();

  // emit_code.cpp
  /// With its location.
  void emit_instruction(const loops::Instruction& instruction);
  void emit_code(const loops::Instruction& instruction);
  void emit_math(const loops::Instruction& instruction);
  Value* integer_math(loops::Op op, loops::Dtype dtype, Value* const* operands);
  Value* compare(loops::Op op, loops::Dtype dtype, Value* a, Value* b);
  Value* cast(loops::Dtype from, loops::Dtype to, Value* value);
  void emit_bounds(const loops::Instruction& instruction);
  Value* constant(const loops::Instruction& instruction);

  // emit_memory.cpp
  Register expression(shapes::Expr expr);
  Value* uniform(shapes::Expr expr);
  Value* varying_expression(shapes::Expr expr);
  bool is_varying(shapes::Expr expr) const;
  void emit_load(const loops::Instruction& instruction);
  void emit_store(const loops::Instruction& instruction);
  Value* read(loops::Dtype dtype, Value* bits);
  /// `exact`: a bf16 number, as it is after loading or rounding one.
  Value* written(loops::Dtype dtype, Value* value, bool exact);
  Type* memory_type(loops::Dtype dtype);
  Value* lane_start(shapes::Expr index, int64_t stride);
  Value* strided_load(const loops::Instruction& instruction, int64_t stride);
  Value* lane_pointers(loops::Dtype dtype, Value* base, shapes::Expr index);
  /// The mask of an access: lanes that are there and that the kernel's own mask allows; null: all.
  Value* access_mask(loops::ValueId mask);
  /// Runs `body` where a scalar condition holds; gives `body`'s result or `otherwise`.
  Value* guarded(Value* condition, Value* otherwise, const std::function<Value*()>& body);
  Value* raw_load(const loops::Instruction& instruction, Value* mask, Value* other);
  void raw_store(const loops::Instruction& instruction, Value* value, Value* mask);
  void read_ahead(size_t block);
  void read_ahead(const Schedule::Ahead& ahead);
  void prefetch(Value* pointer, int64_t offset);
  void stream(Value* allowed, Value* value, Value* pointer);

  // emit_reduce.cpp
  /// How many vectors a wide sum adds in float before it adds to its total.
  static constexpr int64_t kPart = 32;
  void start_reductions(const loops::Block& block, const std::vector<unsigned>& widths);
  std::vector<unsigned> widths_of(size_t block) const;
  void emit_reduce(const loops::Instruction& instruction);
  void add_parts(const loops::Block& block);
  size_t parts_depth(size_t number) const;
  /// The current stage's wide sums are one part each, and lanes are not rows.
  bool one_part(bool across_rows) const { return parts_depth_ == 0 && !across_rows; }
  void finish_reductions(const loops::Block& block);
  std::vector<Value*> identity(const loops::Instruction& instruction, unsigned width);
  std::vector<Value*> combine(const loops::Instruction& instruction, const std::vector<Value*>& a,
                              const std::vector<Value*>& b);
  /// The lanes of a state as one of `least` lanes: halves on halves.
  std::vector<Value*> add_up_lanes(const loops::Instruction& instruction, std::vector<Value*> state, unsigned least);
  bool remembers_nan(const loops::Instruction& instruction) const;
  Type* flag_type();
  void emit_scan(const loops::Instruction& instruction);

  // Small helpers, everywhere used.
  Type* type_of(loops::Dtype dtype);
  Type* lanes_type(Type* scalar, unsigned width) const;
  Value* broadcast(Register reg);
  Value* splat(Value* scalar) { return splat(scalar, lanes_.width); }
  Value* splat(Value* scalar, unsigned width);
  Value* lane_numbers(Type* scalar, unsigned width);
  const Register& get(loops::ValueId id) const { return values_[id].reg; }
  void set(loops::ValueId id, Value* value, bool varying) { values_[id].reg = {value, varying}; }
  loops::Dtype dtype_of(loops::ValueId id) const { return values_[id].dtype; }

  llvm::Module& module_;
  llvm::LLVMContext& context_;
  const Schedule& schedule_;
  const loops::Kernel& kernel_;
  llvm::IRBuilder<> b;
  llvm::Function* function_ = nullptr;
  llvm::BasicBlock* exit_ = nullptr;
  bool locations_;
  /// By variable: where a tile's part of its loop starts and ends.
  std::vector<std::pair<Value*, Value*>> parts_;

  std::vector<Buffer> buffers_;
  std::vector<Value*> symbols_;    // by position in Kernel::symbols
  std::vector<Value*> variables_;  // i64; of the lane variable: lane 0's
  std::vector<Number> values_;
  std::vector<size_t> depths_;  // of the current block's instructions
  Value* error_ = nullptr;
  Lanes lanes_;
  /// Behind which loop of the current stage parts of wide sums are added; see parts_depth().
  size_t parts_depth_ = 0;
  KnownElements known_;
};

}  // namespace magneto::codegen
