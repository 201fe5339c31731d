#include "codegen/llvm/known_elements.h"

#include <algorithm>

namespace magneto::codegen {

using loops::BufferId;
using loops::Instruction;
using loops::Op;
using loops::Role;
using shapes::Expr;
using shapes::ExprKind;

namespace {

/// False: the number is rounded, or another one, in memory.
bool same_bits(loops::Dtype dtype) { return loops::value_dtype(dtype) == dtype && dtype != loops::Dtype::Bool; }

}  // namespace

bool KnownElements::is_one_vector(size_t block) const {
  const std::vector<loops::Loop>& loops = schedule_.kernel.blocks[block].loops;
  const Lanes& lanes = schedule_.stages[block];
  if (loops.size() != 1 || lanes.variable != loops[0].variable || !loops[0].extent.is_constant()) return false;
  const int64_t extent = loops[0].extent.number();
  return extent == lanes.wide || (extent > 0 && extent < lanes.wide && extent <= lanes.narrow);
}

/// The element that an access of the current stage is for, comparable between stages; none for computed indices, masks
/// and additions.
std::optional<Expr> KnownElements::place_of(const Instruction& instruction) const {
  const bool plain = instruction.op == Op::Load    ? instruction.operands[0] == loops::kNoValue
                     : instruction.op == Op::Store ? instruction.operands[1] == loops::kNoValue
                                                   : false;
  const auto computed = [](Expr leaf) { return leaf.kind() == ExprKind::Value; };
  if (stage_ < 0 || !plain || shapes::any_leaf(instruction.index, computed)) return std::nullopt;
  const Expr variable = Expr::variable(schedule_.kernel.blocks[static_cast<size_t>(stage_)].loops[0].variable);
  if (!shapes::depends_on(instruction.index, variable)) return std::nullopt;
  return shapes::substitute(instruction.index, [&](Expr leaf) -> std::optional<Expr> {
    if (leaf == variable) return Expr::variable(schedule_.kernel.variable_count);
    return std::nullopt;
  });
}

llvm::Value* KnownElements::find(const Instruction& load, llvm::Value* mask) const {
  const std::optional<Expr> place = place_of(load);
  for (const Element& known : known_) {
    if (place && known.buffer == load.buffer && known.index == *place && known.mask == mask) return known.value;
  }
  return nullptr;
}

void KnownElements::note_load(const Instruction& load, llvm::Value* mask, llvm::Value* value) {
  if (const auto place = place_of(load)) known_.push_back({load.buffer, *place, mask, value});
}

/// A store may be to what another buffer has, except that nothing else has the scratch.
void KnownElements::note_store(const Instruction& store, llvm::Value* mask, llvm::Value* value) {
  const auto is_scratch = [&](BufferId buffer) {
    return schedule_.kernel.buffers[static_cast<size_t>(buffer)].role == Role::Scratch;
  };
  std::erase_if(known_, [&](const Element& known) {
    return known.buffer == store.buffer || (!is_scratch(known.buffer) && !is_scratch(store.buffer));
  });
  if (!same_bits(schedule_.kernel.buffers[static_cast<size_t>(store.buffer)].dtype)) return;
  if (const auto place = place_of(store)) known_.push_back({store.buffer, *place, mask, value});
}

std::vector<bool> KnownElements::rows_in_registers() const {
  std::vector<bool> result(schedule_.kernel.buffers.size(), false);
  if (schedule_.rows.variable >= 0) return result;
  for (size_t buffer = 0; buffer < result.size(); ++buffer) {
    const loops::Dtype dtype = schedule_.kernel.buffers[buffer].dtype;
    if (schedule_.kernel.buffers[buffer].role != Role::Scratch || !same_bits(dtype)) continue;
    std::optional<Lanes> lanes;
    bool fits = true;
    for (size_t block = 0; block < schedule_.kernel.blocks.size(); ++block) {
      for (const Instruction& instruction : schedule_.kernel.blocks[block].code) {
        if (instruction.buffer != static_cast<BufferId>(buffer)) continue;
        const bool stores = instruction.op == Op::Store && instruction.operands[1] == loops::kNoValue;
        const bool loads = instruction.op == Op::Load && instruction.operands[0] == loops::kNoValue;
        fits = fits && is_one_vector(block) && (lanes ? stores || loads : stores) &&
               instruction.index == Expr::variable(schedule_.stages[block].variable);
        if (!fits) break;
        const Lanes& own = schedule_.stages[block];
        fits = !lanes || (lanes->wide == own.wide && lanes->narrow == own.narrow);
        lanes = own;
      }
    }
    result[buffer] = fits && lanes;
  }
  return result;
}

}  // namespace magneto::codegen
