#include "runtime/device/planted_kernel.h"

#include <algorithm>
#include <string>

#include "observe/faults.h"

namespace magneto::runtime {
namespace {

using loops::Block;
using loops::Instruction;
using loops::Kernel;
using loops::Op;
using loops::ValueId;

/// Puts instructions behind one of a block, of which the result is known by another name in front of them.
class Inserter {
 public:
  Inserter(Kernel& kernel, Block& block, size_t position)
      : kernel_(kernel), block_(block), position_(position), dtype_(block.code[position].dtype) {
    result_ = block.code[position].result;
    right_ = kernel.value_count++;
    block.code[position].result = right_;
  }

  ValueId right() const { return right_; }
  ValueId constant(double number) {
    Instruction made{Op::Constant};
    made.dtype = dtype_;
    made.number = number;
    return add(made, kernel_.value_count++);
  }
  ValueId index(shapes::Expr expr) {
    Instruction made{Op::Index};
    made.dtype = loops::Dtype::I64;
    made.index = expr;
    return add(made, kernel_.value_count++);
  }
  ValueId integer(int64_t number) {
    Instruction made{Op::Constant};
    made.dtype = loops::Dtype::I64;
    made.integer = number;
    return add(made, kernel_.value_count++);
  }
  ValueId math(Op op, ValueId a, ValueId b, loops::Dtype dtype) {
    Instruction made{op};
    made.dtype = dtype;
    made.operands = {a, b, loops::kNoValue};
    return add(made, kernel_.value_count++);
  }
  loops::Dtype dtype() const { return dtype_; }
  /// The result is `wrong` where `condition` holds.
  void select(ValueId condition, ValueId wrong) {
    Instruction made{Op::Select};
    made.dtype = dtype_;
    made.operands = {condition, wrong, right_};
    add(made, result_);
  }

 private:
  ValueId add(Instruction made, ValueId result) {
    made.result = result;
    block_.code.insert(block_.code.begin() + static_cast<std::ptrdiff_t>(++position_), made);
    return result;
  }

  Kernel& kernel_;
  Block& block_;
  size_t position_;
  loops::Dtype dtype_;
  ValueId result_ = loops::kNoValue, right_ = loops::kNoValue;
};

bool has_extent(const Kernel& kernel, const Block& block, int64_t extent) {
  const auto is = [&](const loops::Loop& loop) { return loop.extent.is_constant() && loop.extent.number() == extent; };
  return std::ranges::any_of(kernel.parallel, is) || std::ranges::any_of(block.loops, is);
}

}  // namespace

Kernel as_planted(const Kernel& kernel) {
  Kernel changed = kernel;
  for (const char* kind : {"kernel.wrong", "kernel.lane", "kernel.nan", "kernel.size"}) {
    const std::string* fault = observe::fault_at(kind);
    if (!fault) continue;
    const std::string op = fault->substr(0, fault->find(':'));
    for (Block& block : changed.blocks) {
      for (size_t i = 0; i < block.code.size(); ++i) {
        const Instruction& here = block.code[i];
        if (loops::facts(here.op).text != op || !loops::is_float(here.dtype)) continue;
        if (loops::facts(here.op).op_class == loops::OpClass::Reduce) continue;
        const std::string_view what = std::string_view(kind).substr(7);
        if (what == "size" && !has_extent(changed, block, std::stoll(fault->substr(fault->find(':') + 1)))) continue;
        const auto& loops = block.is_stage() ? block.loops : changed.parallel;
        if (what == "lane" && loops.empty()) continue;
        Inserter to(changed, block, i);
        const ValueId wrong = to.math(Op::Add, to.right(), to.constant(1), to.dtype());
        if (what == "lane") {
          const ValueId lane = to.index(shapes::Expr::variable(loops.back().variable));
          to.select(to.math(Op::Eq, lane, to.integer(3), loops::Dtype::Bool), wrong);
        } else if (what == "nan") {
          to.select(to.math(Op::Ne, to.right(), to.right(), loops::Dtype::Bool), to.constant(0));
        } else {
          to.select(to.math(Op::Eq, to.right(), to.right(), loops::Dtype::Bool), wrong);
        }
        return changed;
      }
    }
  }
  return changed;
}

}  // namespace magneto::runtime
