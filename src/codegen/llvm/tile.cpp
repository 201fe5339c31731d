#include "codegen/llvm/tile.h"

#include <algorithm>

#include "loops/sharing.h"

namespace magneto::codegen {
namespace {

using loops::Block;
using loops::BufferId;
using loops::Expr;
using loops::Instruction;
using loops::Kernel;
using loops::Loop;
using loops::Op;

/// Shorter loops are not worth a block.
constexpr int64_t kLeastExtent = 16;
/// All that a strip or a block keeps turned stays in the second cache.
constexpr int64_t kTurnedBytes = 320 * 1024;
/// Rows of a strip's scratch are so many elements further apart than they are long: else they would meet in few sets of
/// the cache.
constexpr int64_t kApart = 16;

std::optional<int64_t> stride_along(Expr index, int32_t variable) {
  const auto linear = shapes::linear_in(index, Expr::variable(variable));
  if (!linear || !linear->coefficient.is_constant()) return std::nullopt;
  return linear->coefficient.number();
}

/// Contiguous along `along`, and elsewhere along `lanes`.
bool lies_along(Expr index, int32_t lanes, int32_t along) {
  const auto other = shapes::linear_in(index, Expr::variable(lanes));
  if (!other || other->coefficient.is_constant(0) || other->coefficient.is_constant(1)) return false;
  return stride_along(index, along) == 1 && !shapes::depends_on(other->coefficient, Expr::variable(along));
}

bool is_plain(const Instruction& instruction) {
  const bool unmasked = instruction.op == Op::Load    ? instruction.operands[0] == loops::kNoValue
                        : instruction.op == Op::Store ? instruction.operands[1] == loops::kNoValue
                                                      : false;
  return unmasked &&
         !shapes::any_leaf(instruction.index, [](Expr leaf) { return leaf.kind() == shapes::ExprKind::Value; });
}

/// A load of what nobody writes, or the only store to its buffer, which nobody reads.
bool may_turn(const Kernel& kernel, const Instruction& instruction) {
  if (!is_plain(instruction)) return false;
  const loops::Role role = kernel.buffers[static_cast<size_t>(instruction.buffer)].role;
  if (instruction.op == Op::Load) return role == loops::Role::In;
  if (role != loops::Role::Out) return false;
  int accesses = 0;
  for (const Block& block : kernel.blocks) {
    for (const Instruction& other : block.code) accesses += other.buffer == instruction.buffer;
  }
  return accesses == 1;
}

int64_t padded(int64_t extent) { return (extent + kApart - 1) / kApart * kApart; }

bool is_long(Expr extent) { return !extent.is_constant() || extent.number() >= kLeastExtent; }

/// More memory than 2,048 pages, which is what the addresses of large CPUs' second level are for.
bool is_wide_spread(const loops::Buffer& buffer) {
  const int64_t bytes = loops::dtype_bytes(buffer.dtype);
  return buffer.size.is_constant() && buffer.size.number() * bytes > (int64_t{8} << 20) &&
         Tile::kLongSide * Tile::kSide * bytes <= loops::kScratchBytes;
}

}  // namespace

bool is_turned(const Kernel& kernel, const Instruction& instruction, int32_t lanes, int32_t along) {
  return (instruction.op == Op::Load || instruction.op == Op::Store) && lies_along(instruction.index, lanes, along) &&
         may_turn(kernel, instruction);
}

std::vector<int32_t> turned_loops(const Kernel& kernel, int32_t lanes, const Machine& machine) {
  const auto suits = [&](const Loop& loop) {
    if (!is_long(loop.extent)) return false;
    return machine.masks || (loop.extent.is_constant() && loop.extent.number() % Tile::kSide == 0);
  };
  std::vector<std::pair<int, int32_t>> found;  // how many accesses, variable
  for (const Loop& loop : kernel.parallel) {
    if (loop.variable == lanes && !suits(loop)) return {};
    if (loop.variable == lanes || !suits(loop)) continue;
    int count = 0;
    for (const Block& block : kernel.blocks) {
      for (const Instruction& instruction : block.code) count += is_turned(kernel, instruction, lanes, loop.variable);
    }
    if (count > 0) found.emplace_back(-count, loop.variable);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<int32_t> result;
  for (size_t i = 0; i < std::min<size_t>(found.size(), 2); ++i) result.push_back(found[i].second);
  return result;
}

void make_blocks(Schedule& schedule, const std::vector<int32_t>& loops) {
  Kernel& kernel = schedule.kernel;
  Tile& tile = schedule.tile;
  const int32_t lanes = kernel.parallel.back().variable;
  bool wide_spread = false;
  for (const Block& block : kernel.blocks) {
    for (const Instruction& instruction : block.code) {
      wide_spread |= is_turned(kernel, instruction, lanes, loops[0]) &&
                     is_wide_spread(kernel.buffers[static_cast<size_t>(instruction.buffer)]);
    }
  }
  int64_t size = Tile::kSide;
  for (const int32_t variable : loops) {
    const auto loop = std::find_if(kernel.parallel.begin(), kernel.parallel.end(),
                                   [&](const Loop& candidate) { return candidate.variable == variable; });
    std::rotate(loop, loop + 1, kernel.parallel.end() - 1);
    const int64_t length = loops.size() > 1 ? Tile::kShortSide : wide_spread ? Tile::kLongSide : Tile::kSide;
    tile.across.push_back({variable, kernel.variable_count++, length});
    size *= length;
  }
  tile.lanes = {lanes, kernel.variable_count++, Tile::kSide};
  Expr place = 0;
  for (const Tile::Side& side : tile.across) {
    place = place * side.length + Expr::variable(side.variable) - Expr::variable(side.origin);
  }
  place = place * Tile::kSide + Expr::variable(lanes) - Expr::variable(tile.lanes.origin);
  for (Block& block : kernel.blocks) {
    for (Instruction& instruction : block.code) {
      for (const Tile::Side& side : tile.across) {
        if (!is_turned(kernel, instruction, lanes, side.variable)) continue;
        const auto scratch = static_cast<BufferId>(kernel.buffers.size());
        const loops::Dtype dtype = kernel.buffers[static_cast<size_t>(instruction.buffer)].dtype;
        kernel.buffers.push_back({dtype, loops::Role::Scratch, size, {}});
        auto& list = instruction.op == Op::Load ? tile.loads : tile.stores;
        list.push_back({instruction.buffer, scratch, instruction.index, place, lanes, side.variable});
        instruction.buffer = scratch;
        instruction.index = place;
      }
    }
  }
  // Blocks are of single vectors' multiples.
  schedule.rows.wide = std::min(schedule.rows.wide, Tile::kSide);
}

bool has_strips(const Block& block) {
  return block.loops.size() == 1 && block.loops[0].extent.is_constant() &&
         block.loops[0].extent.number() >= kLeastExtent;
}

namespace {

/// What strips of `along` would turn: accesses of all stages of one length. The same element in several stages is
/// turned once: accesses by buffer and index, which is of the loop `stage`.
struct Strips {
  struct Access {
    Instruction* instruction;
    Block* block;
  };
  Expr extent = 0;
  int64_t row_bytes = 0;
  std::vector<std::pair<std::pair<BufferId, Expr>, std::vector<Access>>> accesses;

  bool fit() const { return !accesses.empty() && Tile::kShortSide * row_bytes <= kTurnedBytes; }
};

Strips find_strips(Kernel& kernel, int32_t along, bool across, int32_t stage) {
  Strips strips;
  for (Block& block : kernel.blocks) {
    if (!has_strips(block)) continue;
    const int32_t own = block.loops[0].variable;
    for (Instruction& instruction : block.code) {
      if (!is_turned(kernel, instruction, across ? along : own, across ? own : along)) continue;
      if (strips.accesses.empty()) strips.extent = block.loops[0].extent;
      if (block.loops[0].extent != strips.extent) continue;
      const std::pair key{instruction.buffer,
                          *loops::in_loops(instruction.index, block.loops, {{stage, strips.extent}})};
      auto known = std::find_if(strips.accesses.begin(), strips.accesses.end(),
                                [&](const auto& entry) { return entry.first == key; });
      if (known == strips.accesses.end()) {
        known = strips.accesses.insert(known, {key, {}});
        strips.row_bytes += (padded(strips.extent.number()) + kApart) *
                            loops::dtype_bytes(kernel.buffers[static_cast<size_t>(instruction.buffer)].dtype);
      }
      known->second.push_back({&instruction, &block});
    }
  }
  return strips;
}

}  // namespace

std::vector<int32_t> strip_loops(Kernel& kernel, const Machine& machine, bool across) {
  std::vector<int32_t> result;
  if (!machine.masks) return result;
  for (const Loop& loop : kernel.parallel) {
    const bool fits = is_long(loop.extent) && find_strips(kernel, loop.variable, across, kernel.variable_count).fit();
    if (fits) result.push_back(loop.variable);
  }
  return result;
}

void make_strips(Schedule& schedule, int32_t along, bool across) {
  Kernel& kernel = schedule.kernel;
  Tile& tile = schedule.tile;
  const int32_t stage = kernel.variable_count++;
  const Strips strips = find_strips(kernel, along, across, stage);
  const int64_t length = Tile::kSide * strips.row_bytes > kTurnedBytes ? Tile::kShortSide : Tile::kSide;
  const auto loop = std::find_if(kernel.parallel.begin(), kernel.parallel.end(),
                                 [&](const Loop& candidate) { return candidate.variable == along; });
  std::rotate(loop, loop + 1, kernel.parallel.end());
  tile.across.push_back({along, kernel.variable_count++, length});
  tile.stage = {stage, strips.extent};
  const Expr row = Expr::variable(along) - Expr::variable(tile.across[0].origin);
  const int64_t apart = padded(strips.extent.number()) + kApart;
  const auto place_at = [&](int32_t variable) {
    return across ? Expr::variable(variable) * length + row : row * apart + Expr::variable(variable);
  };
  for (const auto& [key, accesses] : strips.accesses) {
    const int32_t lane = across ? along : stage, other = across ? stage : along;
    const loops::Dtype dtype = kernel.buffers[static_cast<size_t>(key.first)].dtype;
    const auto scratch = static_cast<BufferId>(kernel.buffers.size());
    kernel.buffers.push_back({dtype, loops::Role::Scratch, length * apart, {}});
    auto& list = accesses[0].instruction->op == Op::Load ? tile.loads : tile.stores;
    list.push_back({key.first, scratch, key.second, place_at(stage), lane, other});
    for (const Strips::Access& access : accesses) {
      access.instruction->buffer = scratch;
      access.instruction->index = place_at(access.block->loops[0].variable);
    }
  }
}

}  // namespace magneto::codegen
