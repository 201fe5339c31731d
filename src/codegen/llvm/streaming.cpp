#include "codegen/llvm/streaming.h"

#include <algorithm>

#include "loops/sharing.h"

namespace magneto::codegen {
namespace {

using loops::Block;
using loops::BufferId;
using loops::Expr;
using loops::Instruction;
using loops::Kernel;
using loops::Op;

/// A row stays in the first cache beside what is read meanwhile.
constexpr int64_t kRowBytes = 32 * 1024;
/// How far ahead is read: beyond the page, at whose end the CPU's own reading ahead stops.
constexpr int64_t kAheadBytes = 4096;

bool is_large(const loops::Buffer& buffer, const Machine& machine) {
  return buffer.role == loops::Role::Out && buffer.size.is_constant() &&
         buffer.size.number() >= machine.stream_bytes / loops::dtype_bytes(buffer.dtype);
}

/// A result whose size is known when the kernel runs: then it is seen whether it is large.
bool may_be_large(const loops::Buffer& buffer, const Machine& machine) {
  return is_large(buffer, machine) || (buffer.role == loops::Role::Out && !buffer.size.is_constant());
}

/// Elements of a stage's loops; 0: not known, or more than a row may have.
int64_t iterations(const Block& block) {
  int64_t count = 1;
  for (const loops::Loop& loop : block.loops) {
    if (!loop.extent.is_constant() || loop.extent.number() > kRowBytes) return 0;
    count *= loop.extent.number();
    if (count > kRowBytes) return 0;
  }
  return block.is_stage() ? count : 0;
}

/// The element of a stage in the order of its loops.
Expr place_in_row(const Block& block) {
  Expr place = 0;
  for (const loops::Loop& loop : block.loops) place = place * loop.extent + Expr::variable(loop.variable);
  return place;
}

struct Access {
  Block* block;
  Instruction* instruction;
};

std::vector<Access> accesses_of(Kernel& kernel, BufferId buffer) {
  std::vector<Access> found;
  for (Block& block : kernel.blocks) {
    for (Instruction& instruction : block.code) {
      if (instruction.buffer == buffer) found.push_back({&block, &instruction});
    }
  }
  return found;
}

/// Stores and loads that all are of the iteration's own element, a store last.
bool is_row_like(const std::vector<Access>& accesses) {
  if (accesses.size() < 3 || accesses.back().instruction->op != Op::Store) return false;
  const Access& first = accesses.front();
  return first.instruction->op == Op::Store && std::all_of(accesses.begin(), accesses.end(), [&](const Access& access) {
           const Instruction& instruction = *access.instruction;
           const bool plain = instruction.op == Op::Store
                                  ? instruction.operands[1] == loops::kNoValue
                                  : instruction.op == Op::Load && instruction.operands[0] == loops::kNoValue;
           return plain && iterations(*access.block) > 0 &&
                  loops::in_loops(instruction.index, access.block->loops, first.block->loops) ==
                      first.instruction->index;
         });
}

}  // namespace

void keep_rows_in_scratch(Kernel& kernel, const Machine& machine) {
  for (size_t b = 0; b < kernel.buffers.size(); ++b) {
    const loops::Buffer buffer = kernel.buffers[b];
    if (!is_large(buffer, machine)) continue;
    std::vector<Access> accesses = accesses_of(kernel, static_cast<BufferId>(b));
    if (!is_row_like(accesses)) continue;
    const int64_t count = iterations(*accesses.front().block);
    if (count * loops::dtype_bytes(buffer.dtype) > kRowBytes) continue;
    const auto scratch = static_cast<BufferId>(kernel.buffers.size());
    kernel.buffers.push_back({buffer.dtype, loops::Role::Scratch, count, {}});
    accesses.pop_back();
    for (const Access& access : accesses) {
      access.instruction->buffer = scratch;
      access.instruction->index = place_in_row(*access.block);
    }
  }
}

std::vector<bool> find_streamed(const Kernel& kernel, const Machine& machine) {
  std::vector<bool> streamed(kernel.buffers.size(), false);
  for (size_t b = 0; b < kernel.buffers.size(); ++b) streamed[b] = may_be_large(kernel.buffers[b], machine);
  for (const Block& block : kernel.blocks) {
    for (const Instruction& instruction : block.code) {
      if (instruction.buffer >= 0 && instruction.op != Op::Store)
        streamed[static_cast<size_t>(instruction.buffer)] = false;
    }
  }
  return streamed;
}

std::vector<Schedule::Ahead> find_ahead(const Schedule& schedule) {
  const Kernel& kernel = schedule.kernel;
  const std::vector<bool>& streamed = schedule.streamed;
  std::vector<Schedule::Ahead> result;
  const bool streams = std::find(streamed.begin(), streamed.end(), true) != streamed.end();
  if (!streams || kernel.parallel.empty() || schedule.tile) return result;
  const bool across = schedule.rows.variable >= 0;
  const auto has_loads = [](const Block& block) {
    return std::any_of(block.code.begin(), block.code.end(), [](const Instruction& i) { return i.op == Op::Load; });
  };
  const auto first = std::find_if(kernel.blocks.begin(), kernel.blocks.end(), has_loads);
  if (first == kernel.blocks.end() || (across ? kernel.blocks.size() > 1 : first->loops.size() != 1)) return result;
  // Where the next row is far, the last stage of the same loop asks for it: all stages before have this row in use.
  auto reader = first;
  const bool is_long = !across && iterations(*first) >= kAheadBytes / 4;
  for (auto block = first; is_long && block != kernel.blocks.end(); ++block) {
    if (block->loops.size() == 1 && block->loops[0].extent == first->loops[0].extent) reader = block;
  }
  if (is_long && reader == first) return result;  // the CPU's own reading ahead does it
  const Expr row = Expr::variable(kernel.parallel.back().variable);
  for (const Instruction& instruction : first->code) {
    const bool plain =
        instruction.op == Op::Load && instruction.operands[0] == loops::kNoValue &&
        !shapes::any_leaf(instruction.index, [](Expr leaf) { return leaf.kind() == shapes::ExprKind::Value; });
    const auto along = shapes::linear_in(instruction.index, row);
    if (!plain || !along || !along->coefficient.is_constant() || along->coefficient.number() < 1) continue;
    const int64_t bytes = loops::dtype_bytes(kernel.buffers[static_cast<size_t>(instruction.buffer)].dtype);
    const int64_t rows = std::max<int64_t>(1, kAheadBytes / bytes / along->coefficient.number());
    const auto index = loops::in_loops(instruction.index, first->loops, reader->loops);
    if (!index) continue;
    const Expr next = shapes::substitute(*index, [&](Expr leaf) -> std::optional<Expr> {
      if (leaf == row) return row + rows;
      return std::nullopt;
    });
    result.push_back({static_cast<size_t>(reader - kernel.blocks.begin()), instruction.buffer, next});
  }
  return result;
}

}  // namespace magneto::codegen
