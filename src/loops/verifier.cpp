// The invariants of a kernel. What passes here may be given to the interpreter and to the code generator.
#include <algorithm>

#include "loops/ir.h"

namespace magneto::loops {
namespace {

class Verifier {
 public:
  explicit Verifier(const Kernel& kernel) : kernel_(kernel) {}

  std::vector<std::string> run() {
    known_.resize(std::max(kernel_.value_count, 0));
    variables_.resize(std::max(kernel_.variable_count, 0));
    for (const Buffer& buffer : kernel_.buffers) check_buffer(buffer);
    declare(kernel_.parallel, /*stage=*/false);
    for (size_t i = 0; i < kernel_.blocks.size(); ++i) check_block(i);
    return std::move(violations_);
  }

 private:
  enum class Scope : uint8_t { Undefined, Row, Here, Behind, Gone };
  struct Known {
    Scope scope = Scope::Undefined;
    Dtype dtype = Dtype::F32;
    bool welford = false;
  };
  enum class Variable : uint8_t { Undefined, Parallel, Here, Gone };

  void report(const std::string& violation) { violations_.push_back(where_ + violation); }
  static std::string name(ValueId id) { return "%" + std::to_string(id); }

  void check_buffer(const Buffer& buffer) {
    const std::string label = "b" + std::to_string(&buffer - kernel_.buffers.data());
    check_symbols(buffer.size, label + "'s size");
    if (shapes::any_leaf(buffer.size, [](Expr leaf) { return leaf.kind() != shapes::ExprKind::Symbol; })) {
      report(label + "'s size depends on more than symbols");
    }
    if (buffer.role == Role::Scratch && (!buffer.size.is_constant() || buffer.size.number() < 0 ||
                                         buffer.size.number() > kScratchBytes / dtype_bytes(buffer.dtype))) {
      report(label + " is scratch of no fixed or too large a size");
    }
  }

  void check_symbols(Expr expr, const std::string& what) {
    shapes::any_leaf(expr, [&](Expr leaf) {
      if (leaf.kind() == shapes::ExprKind::Symbol && kernel_.position_of(leaf.id()) == kernel_.symbols.size()) {
        report(what + " uses " + text(leaf) + ", which is no symbol of the kernel");
      }
      return false;
    });
  }

  void declare(const std::vector<Loop>& loops, bool stage) {
    for (const Loop& loop : loops) {
      const std::string label = "i" + std::to_string(loop.variable);
      check_symbols(loop.extent, label + "'s extent");
      shapes::any_leaf(loop.extent, [&](Expr leaf) {
        if (leaf.kind() == shapes::ExprKind::Value ||
            (leaf.kind() == shapes::ExprKind::Variable && (!stage || variable(leaf.id()) != Variable::Parallel))) {
          report(label + "'s extent depends on " + text(leaf));
        }
        return false;
      });
    }
    for (const Loop& loop : loops) {
      if (loop.variable < 0 || loop.variable >= kernel_.variable_count) {
        report("i" + std::to_string(loop.variable) + " is out of range");
      } else if (variables_[loop.variable] != Variable::Undefined) {
        report("i" + std::to_string(loop.variable) + " is defined twice");
      } else {
        variables_[loop.variable] = stage ? Variable::Here : Variable::Parallel;
      }
    }
  }

  Variable variable(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < variables_.size() ? variables_[id] : Variable::Undefined;
  }

  void check_block(size_t number) {
    const Block& block = kernel_.blocks[number];
    stage_ = &block;
    where_ = "block " + std::to_string(number) + ": ";
    declare(block.loops, /*stage=*/true);
    for (size_t i = 0; i < block.code.size(); ++i) {
      where_ = "block " + std::to_string(number) + ", instruction " + std::to_string(i) + ": ";
      check_instruction(block.code[i]);
    }
    where_.clear();
    for (Known& value : known_) {
      if (value.scope == Scope::Here) value.scope = Scope::Gone;
      if (value.scope == Scope::Behind) value.scope = Scope::Row;
    }
    for (const Loop& loop : block.loops) {
      if (variable(loop.variable) == Variable::Here) variables_[loop.variable] = Variable::Gone;
    }
  }

  /// The value's dtype; reports values that do not exist here.
  Dtype use(ValueId id) {
    if (id < 0 || id >= kernel_.value_count) {
      report("uses " + name(id) + ", which is no value");
      return Dtype::F32;
    }
    switch (known_[id].scope) {
      case Scope::Undefined:
        report("uses " + name(id) + " before it is defined");
        break;
      case Scope::Behind:
        report("uses the reduction " + name(id) + " inside its stage");
        break;
      case Scope::Gone:
        report("uses " + name(id) + " of another stage");
        break;
      case Scope::Row:
      case Scope::Here:
        break;
    }
    return known_[id].dtype;
  }

  void check_expr(Expr expr) {
    check_symbols(expr, "an expression");
    shapes::any_leaf(expr, [&](Expr leaf) {
      if (leaf.kind() == shapes::ExprKind::Variable && variable(leaf.id()) != Variable::Parallel &&
          variable(leaf.id()) != Variable::Here) {
        report("uses " + text(leaf) + ", which is no variable here");
      }
      if (leaf.kind() == shapes::ExprKind::Value && dtype_class(use(leaf.id())) != DtypeClass::Integer) {
        report("indexes with " + name(leaf.id()) + ", which is no integer");
      }
      return false;
    });
  }

  void expect_dtype(const char* what, Dtype found, Dtype wanted) {
    if (found != wanted) {
      report(std::string(what) + " is " + std::string(dtype_text(found)) + ", not " + std::string(dtype_text(wanted)));
    }
  }

  void check_allowed(const Instruction& instruction, Dtype dtype) {
    static constexpr char kLetters[] = {'F', 'I', 'B'};
    if (facts(instruction.op).dtypes.find(kLetters[static_cast<size_t>(dtype_class(dtype))]) ==
        std::string_view::npos) {
      report(std::string(facts(instruction.op).text) + " is not defined for " + std::string(dtype_text(dtype)));
    }
  }

  void check_mask(ValueId mask) {
    if (mask != kNoValue) expect_dtype("the mask", use(mask), Dtype::Bool);
  }

  void check_instruction(const Instruction& instruction) {
    const OpFacts& op = facts(instruction.op);
    if (instruction.result != kNoValue && value_dtype(instruction.dtype) != instruction.dtype) {
      report("values are never " + std::string(dtype_text(instruction.dtype)));
    }
    switch (op.op_class) {
      case OpClass::Math: {
        for (int i = 0; i < op.operands; ++i)
          expect_dtype("an operand", use(instruction.operands[i]), instruction.dtype);
        check_allowed(instruction, instruction.dtype);
        if ((instruction.op == Op::RoundBF16 || instruction.op == Op::RoundF16)) {
          expect_dtype("the result", instruction.dtype, Dtype::F32);
        }
        break;
      }
      case OpClass::Compare: {
        const Dtype dtype = use(instruction.operands[0]);
        expect_dtype("the second operand", use(instruction.operands[1]), dtype);
        expect_dtype("the result", instruction.dtype, Dtype::Bool);
        break;
      }
      case OpClass::Reduce:
      case OpClass::Scan: {
        if (!stage_->is_stage()) report(std::string(op.text) + " stands in no stage");
        if (op.op_class == OpClass::Scan && stage_->loops.size() != 1) report("a scan is in a stage over one variable");
        const Dtype dtype = use(instruction.operands[0]);
        check_allowed(instruction, dtype);
        if (op.operands == 2) {
          expect_dtype("the index", use(instruction.operands[1]), Dtype::I64);
          expect_dtype("the result", instruction.dtype, Dtype::I64);
        } else if (instruction.op == Op::ReduceSumWide) {
          expect_dtype("the operand", dtype, Dtype::F32);
          expect_dtype("the result", instruction.dtype, Dtype::F64);
        } else {
          expect_dtype("the result", instruction.dtype, dtype);
        }
        break;
      }
      case OpClass::Special:
        check_special(instruction);
    }
    define(instruction);
  }

  void check_special(const Instruction& instruction) {
    switch (instruction.op) {
      case Op::Constant:
        if (instruction.dtype == Dtype::Bool && instruction.integer != 0 && instruction.integer != 1) {
          report("a bool is 0 or 1");
        }
        break;
      case Op::Index:
        check_expr(instruction.index);
        expect_dtype("the result", instruction.dtype, Dtype::I64);
        break;
      case Op::Load:
        if (const Buffer* buffer = check_element(instruction)) {
          expect_dtype("the result", instruction.dtype, value_dtype(buffer->dtype));
        }
        check_mask(instruction.operands[0]);
        if (instruction.operands[0] != kNoValue) {
          expect_dtype("the other value", use(instruction.operands[1]), instruction.dtype);
        }
        break;
      case Op::Store:
      case Op::StoreAdd:
        if (const Buffer* buffer = check_element(instruction)) {
          if (buffer->role == Role::In) report("writes an input");
          expect_dtype("the stored value", use(instruction.operands[0]), value_dtype(buffer->dtype));
          if (instruction.op == Op::StoreAdd) check_allowed(instruction, buffer->dtype);
        }
        check_mask(instruction.operands[1]);
        break;
      case Op::Cast:
        use(instruction.operands[0]);
        break;
      case Op::Bounds:
        expect_dtype("the index", use(instruction.operands[0]), Dtype::I64);
        expect_dtype("the result", instruction.dtype, Dtype::I64);
        check_expr(instruction.index);
        check_mask(instruction.operands[1]);
        if (instruction.message < 0 || static_cast<size_t>(instruction.message) >= kernel_.messages.size()) {
          report("has no message");
        }
        break;
      case Op::Select:
        expect_dtype("the condition", use(instruction.operands[0]), Dtype::Bool);
        expect_dtype("an operand", use(instruction.operands[1]), instruction.dtype);
        expect_dtype("an operand", use(instruction.operands[2]), instruction.dtype);
        break;
      case Op::WelfordM2: {
        const ValueId mean = instruction.operands[0];
        expect_dtype("the result", instruction.dtype, use(mean));
        if (mean >= 0 && mean < kernel_.value_count && !known_[mean].welford)
          report(name(mean) + " is no welford's mean");
        break;
      }
      default:
        break;
    }
  }

  const Buffer* check_element(const Instruction& instruction) {
    check_expr(instruction.index);
    if (instruction.buffer < 0 || static_cast<size_t>(instruction.buffer) >= kernel_.buffers.size()) {
      report("uses b" + std::to_string(instruction.buffer) + ", which is no buffer");
      return nullptr;
    }
    return &kernel_.buffers[instruction.buffer];
  }

  void define(const Instruction& instruction) {
    const bool stores = instruction.op == Op::Store || instruction.op == Op::StoreAdd;
    if (stores) return;
    if (instruction.result < 0 || instruction.result >= kernel_.value_count) {
      report("defines " + name(instruction.result) + ", which is out of range");
      return;
    }
    Known& value = known_[instruction.result];
    if (value.scope != Scope::Undefined) report(name(instruction.result) + " is defined twice");
    value.dtype = instruction.dtype;
    value.welford = instruction.op == Op::ReduceWelford;
    if (facts(instruction.op).op_class == OpClass::Reduce) {
      value.scope = Scope::Behind;
    } else {
      value.scope = stage_->is_stage() ? Scope::Here : Scope::Row;
    }
  }

  const Kernel& kernel_;
  std::vector<Known> known_;
  std::vector<Variable> variables_;
  const Block* stage_ = nullptr;
  std::string where_;
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> verify(const Kernel& kernel) { return Verifier(kernel).run(); }

}  // namespace magneto::loops
