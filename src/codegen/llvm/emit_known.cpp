// Short rows, which are one vector: what a stage has loaded or stored, later stages have in registers.
#include <algorithm>

#include "codegen/llvm/emitter.h"

namespace magneto::codegen {

using loops::BufferId;
using loops::Instruction;
using loops::Op;
using loops::Role;
using shapes::Expr;
using shapes::ExprKind;

bool Emitter::is_one_vector(size_t block) const {
  const std::vector<loops::Loop>& loops = kernel_.blocks[block].loops;
  const codegen::Lanes& lanes = schedule_.stages[block];
  if (loops.size() != 1 || lanes.variable != loops[0].variable || !loops[0].extent.is_constant()) return false;
  const int64_t extent = loops[0].extent.number();
  return extent == lanes.wide || (extent > 0 && extent < lanes.wide && extent <= lanes.narrow);
}

/// The element that an access of the current stage is for, comparable between stages; none for computed indices, masks
/// and additions.
std::optional<Expr> Emitter::place_of(const Instruction& instruction) const {
  const bool plain = instruction.op == Op::Load    ? instruction.operands[0] == loops::kNoValue
                     : instruction.op == Op::Store ? instruction.operands[1] == loops::kNoValue
                                                   : false;
  const auto computed = [](Expr leaf) { return leaf.kind() == ExprKind::Value; };
  if (one_vector_ < 0 || !plain || shapes::any_leaf(instruction.index, computed)) return std::nullopt;
  const Expr variable = Expr::variable(kernel_.blocks[static_cast<size_t>(one_vector_)].loops[0].variable);
  if (!shapes::depends_on(instruction.index, variable)) return std::nullopt;
  return shapes::substitute(instruction.index, [&](Expr leaf) -> std::optional<Expr> {
    if (leaf == variable) return Expr::variable(kernel_.variable_count);
    return std::nullopt;
  });
}

llvm::Value* Emitter::find_known(const Instruction& instruction) const {
  const std::optional<Expr> place = place_of(instruction);
  for (const Known& known : known_) {
    if (place && known.buffer == instruction.buffer && known.index == *place && known.mask == lanes_.mask) {
      return known.value;
    }
  }
  return nullptr;
}

void Emitter::note_load(const Instruction& instruction, Value* value) {
  if (const auto place = place_of(instruction)) known_.push_back({instruction.buffer, *place, lanes_.mask, value});
}

/// A store may be to what another buffer has, except that nothing else has the scratch.
void Emitter::note_store(const Instruction& instruction, Value* value) {
  const auto is_scratch = [&](BufferId buffer) {
    return kernel_.buffers[static_cast<size_t>(buffer)].role == Role::Scratch;
  };
  std::erase_if(known_, [&](const Known& known) {
    return known.buffer == instruction.buffer || (!is_scratch(known.buffer) && !is_scratch(instruction.buffer));
  });
  // What is narrower in memory is rounded there.
  const loops::Dtype dtype = kernel_.buffers[static_cast<size_t>(instruction.buffer)].dtype;
  if (memory_type(dtype) != type_of(dtype)) return;
  if (const auto place = place_of(instruction)) {
    known_.push_back({instruction.buffer, *place, lanes_.mask, splat(value)});
  }
}

/// Scratch memory in which each stage finds what it needs among the known elements.
std::vector<bool> Emitter::find_rows_in_registers() const {
  std::vector<bool> result(kernel_.buffers.size(), false);
  if (schedule_.rows.variable >= 0) return result;
  for (size_t buffer = 0; buffer < result.size(); ++buffer) {
    const loops::Dtype dtype = kernel_.buffers[buffer].dtype;
    const bool same_bits = loops::value_dtype(dtype) == dtype && dtype != loops::Dtype::Bool;
    if (kernel_.buffers[buffer].role != Role::Scratch || !same_bits) continue;
    std::optional<codegen::Lanes> lanes;
    bool fits = true;
    for (size_t block = 0; block < kernel_.blocks.size(); ++block) {
      for (const Instruction& instruction : kernel_.blocks[block].code) {
        if (instruction.buffer != static_cast<BufferId>(buffer)) continue;
        const bool stores = instruction.op == Op::Store && instruction.operands[1] == loops::kNoValue;
        const bool loads = instruction.op == Op::Load && instruction.operands[0] == loops::kNoValue;
        fits = fits && is_one_vector(block) && (lanes ? stores || loads : stores) &&
               instruction.index == Expr::variable(schedule_.stages[block].variable);
        if (!fits) break;
        const codegen::Lanes& own = schedule_.stages[block];
        fits = !lanes || (lanes->wide == own.wide && lanes->narrow == own.narrow);
        lanes = own;
      }
    }
    result[buffer] = fits && lanes;
  }
  return result;
}

}  // namespace magneto::codegen
