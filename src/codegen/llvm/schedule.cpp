#include "codegen/llvm/schedule.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "codegen/llvm/streaming.h"
#include "codegen/llvm/variant.h"
#include "loops/normalize.h"

namespace magneto::codegen {
namespace {

using loops::Block;
using loops::Dtype;
using loops::Expr;
using loops::Instruction;
using loops::Kernel;
using loops::Loop;
using loops::Op;
using loops::OpClass;
using shapes::ExprKind;

constexpr double kUnknownExtent = 256;

/// A guess at an extent, for choosing only.
double guess(Expr extent) {
  return static_cast<double>(std::max<int64_t>(1, shapes::evaluate(extent, [](Expr leaf) -> int64_t {
                                                 return leaf.kind() == ExprKind::Symbol
                                                            ? static_cast<int64_t>(kUnknownExtent)
                                                            : 0;
                                               })));
}

bool is_access(Op op) { return op == Op::Load || op == Op::Store || op == Op::StoreAdd; }

/// What a scalar instruction that touches no memory costs.
double weight(Op op) {
  if (op == Op::Pow || op == Op::Atan2) return 20;
  return op >= Op::Exp && op <= Op::Lgamma ? 6 : 0.5;
}

/// What an instruction costs by element when the lanes run along `variable`; one is a scalar instruction.
double cost_along(const Instruction& instruction, Expr variable, double lanes) {
  if (!is_access(instruction.op)) return weight(instruction.op) / lanes;
  const bool indirect = shapes::any_leaf(instruction.index, [](Expr leaf) { return leaf.kind() == ExprKind::Value; });
  const auto linear = shapes::linear_in(instruction.index, variable);
  const bool store = instruction.op != Op::Load;
  if (indirect || !linear || !linear->coefficient.is_constant()) return store ? 2.0 : 1.2;
  if (linear->coefficient.is_constant(0)) return store ? 1.0 : 0.3 / lanes;
  if (linear->coefficient.is_constant(1)) return 1.0 / lanes;
  return store ? 2.0 : 1.2;
}

/// The part of the lanes that do work.
double utilisation(double extent, double lanes) {
  const double vectors = std::max(1.0, static_cast<double>(static_cast<int64_t>((extent + lanes - 1) / lanes)));
  return extent / (vectors * lanes);
}

double iterations(const Block& block) {
  double result = 1;
  for (const Loop& loop : block.loops) result *= guess(loop.extent);
  return result;
}

/// Bytes of the widest value that takes part: it decides how many lanes a register has.
int widest(const Kernel& kernel) {
  int64_t bytes = 1;
  bool floats = false;
  for (const Block& block : kernel.blocks) {
    for (const Instruction& instruction : block.code) {
      if (instruction.op == Op::Index || instruction.op == Op::Constant) continue;
      bytes = std::max(bytes, loops::dtype_bytes(instruction.dtype));
      floats |= loops::is_float(instruction.dtype);
    }
  }
  // A few indices beside f32 arithmetic take two registers each; that is cheaper than half-filled ones.
  return static_cast<int>(floats ? std::min<int64_t>(bytes, 8) : bytes);
}

/// Instructions that make a body heavy: several vectors at once would only spill registers.
bool is_heavy(const Block& block) {
  double weight = 0;
  for (const Instruction& instruction : block.code) {
    const OpClass op_class = loops::facts(instruction.op).op_class;
    if (op_class == OpClass::Math && instruction.op >= Op::Exp && instruction.op <= Op::Lgamma) weight += 8;
    if (instruction.op == Op::Pow || instruction.op == Op::Atan2) weight += 30;
    if (instruction.op == Op::ReduceWelford) weight += 6;
    weight += 1;
  }
  return weight > 24;
}

int power_of_two_at_least(double number, int limit) {
  int result = 1;
  while (result < limit && result < number) result *= 2;
  return result;
}

bool has_reduction(const Block& block) {
  return std::any_of(block.code.begin(), block.code.end(),
                     [](const Instruction& i) { return loops::facts(i.op).op_class == OpClass::Reduce; });
}

class Scheduler {
 public:
  Scheduler(Kernel kernel, const Machine& machine, const Variant& variant) : machine_(machine), variant_(variant) {
    schedule_.kernel = std::move(kernel);
    schedule_.machine = machine;
  }

  Schedule run() {
    Kernel& kernel = schedule_.kernel;
    keep_rows_in_scratch(kernel, machine_);
    schedule_.stages.resize(kernel.blocks.size());
    register_lanes_ = std::max(1, machine_.vector_bytes / std::max(4, widest(kernel)));
    if (widest(kernel) < 4) register_lanes_ = machine_.vector_bytes / widest(kernel);

    double within = 0;
    std::vector<size_t> lane_loops(kernel.blocks.size(), 0);
    for (size_t i = 0; i < kernel.blocks.size(); ++i) within += cost_within(kernel.blocks[i], lane_loops[i]);
    double across = 1e300;
    size_t row_loop = 0;
    for (size_t i = 0; i < kernel.parallel.size(); ++i) {
      const double cost = cost_across(kernel.parallel[i]);
      // The later loop where it makes no difference: that is the order of the memory.
      if (cost <= across) {
        across = cost;
        row_loop = i;
      }
    }
    // Scratch is one row's; lanes across rows would share it.
    const bool scratch = std::any_of(kernel.buffers.begin(), kernel.buffers.end(),
                                     [](const loops::Buffer& buffer) { return buffer.role == loops::Role::Scratch; });
    bool across_rows = across < within;
    if (variant_.other_lanes && across < 1e300) across_rows = !across_rows;
    if (!kernel.parallel.empty() && across_rows && !scratch) {
      std::rotate(kernel.parallel.begin() + static_cast<ptrdiff_t>(row_loop),
                  kernel.parallel.begin() + static_cast<ptrdiff_t>(row_loop) + 1, kernel.parallel.end());
      bool heavy = false, long_stage = false, thin = true;
      for (const Block& block : kernel.blocks) {
        heavy |= is_heavy(block);
        long_stage |= block.is_stage();
        thin &= block.code.size() <= 2;
      }
      // A sum of columns and its like: all that a line of memory gives at once, up to a quarter of a page.
      const int of_stage = thin ? 16 : 4;
      schedule_.rows = lanes_for(kernel.parallel.back(), heavy ? 1 : long_stage ? of_stage : 2);
      if (!long_stage) find_tile();
    } else {
      for (size_t i = 0; i < kernel.blocks.size(); ++i) {
        Block& block = kernel.blocks[i];
        if (!block.is_stage() || loops::runs_in_order(block)) continue;
        const auto chosen = block.loops.begin() + static_cast<ptrdiff_t>(lane_loops[i]);
        std::rotate(chosen, chosen + 1, block.loops.end());
        // Short rows are one vector in all stages: then they stay in registers (emit_known.cpp).
        const Expr row = block.loops.back().extent;
        const bool short_row = row.is_constant() && row.number() <= 4 * register_lanes_;
        schedule_.stages[i] =
            lanes_for(block.loops.back(),
                      is_heavy(block) ? (has_reduction(block) ? 2 : 1) : (has_reduction(block) || short_row ? 4 : 2));
      }
    }
    schedule_.streamed = find_streamed(kernel, machine_);
    schedule_.ahead = find_ahead(schedule_);
    schedule_.units = 1;
    for (const Loop& loop : kernel.parallel) {
      const bool lanes = schedule_.tile.across >= 0 && loop.variable == schedule_.rows.variable;
      const Expr extent = shapes::max(loop.extent, 0);
      if (loop.variable == schedule_.tile.across) {
        schedule_.units *= shapes::ceil_div(extent, schedule_.tile.across_side);
      } else if (lanes) {
        schedule_.rows_per_unit = extent * schedule_.tile.across_side;
        schedule_.units *= shapes::min(extent, 1);  // no unit at all where there is no row
      } else {
        schedule_.units *= extent;
      }
    }
    return std::move(schedule_);
  }

 private:
  /// The parallel loop (not the lanes') along which a strided load is contiguous; -1: none.
  int32_t turned_along(const Instruction& instruction) const {
    const Kernel& kernel = schedule_.kernel;
    const auto indirect = [](Expr leaf) { return leaf.kind() == ExprKind::Value; };
    if (instruction.op != Op::Load || instruction.operands[0] != loops::kNoValue ||
        kernel.buffers[instruction.buffer].role != loops::Role::In || shapes::any_leaf(instruction.index, indirect)) {
      return -1;
    }
    const auto along = shapes::linear_in(instruction.index, Expr::variable(schedule_.rows.variable));
    if (!along || along->coefficient.is_constant(0) || along->coefficient.is_constant(1)) return -1;
    for (const Loop& loop : kernel.parallel) {
      if (loop.variable == schedule_.rows.variable) continue;
      const auto other = shapes::linear_in(instruction.index, Expr::variable(loop.variable));
      const bool apart = !shapes::depends_on(along->coefficient, Expr::variable(loop.variable));
      if (other && other->coefficient.is_constant(1) && apart) return loop.variable;
    }
    return -1;
  }

  /// More memory than 2,048 pages, which is what the addresses of large CPUs' second level are for; its rectangle is
  /// no larger than scratch memory may be.
  static bool is_wide_spread(const loops::Buffer& buffer) {
    const int64_t bytes = loops::dtype_bytes(buffer.dtype);
    return buffer.size.is_constant() && buffer.size.number() * bytes > (int64_t{8} << 20) &&
           Tile::kLongSide * Tile::kSide * bytes <= loops::kScratchBytes;
  }

  void find_tile() {
    Kernel& kernel = schedule_.kernel;
    int32_t across = -1;
    for (const Block& block : kernel.blocks) {
      for (const Instruction& instruction : block.code) {
        if (across < 0) across = turned_along(instruction);
      }
    }
    if (across < 0) return;
    const auto loop = std::find_if(kernel.parallel.begin(), kernel.parallel.end(),
                                   [&](const Loop& candidate) { return candidate.variable == across; });
    const auto suits = [&](Expr extent) {
      if (guess(extent) < 16) return false;
      return machine_.masks || (extent.is_constant() && extent.number() % Tile::kSide == 0);
    };
    if (!suits(loop->extent) || !suits(kernel.parallel.back().extent)) return;
    std::rotate(loop, loop + 1, kernel.parallel.end() - 1);
    Tile& tile = schedule_.tile;
    tile.across = across;
    for (const Block& block : kernel.blocks) {
      for (const Instruction& instruction : block.code) {
        if (turned_along(instruction) == across && is_wide_spread(kernel.buffers[instruction.buffer])) {
          tile.across_side = Tile::kLongSide;
        }
      }
    }
    tile.lane_origin = kernel.variable_count++;
    tile.across_origin = kernel.variable_count++;
    for (Block& block : kernel.blocks) {
      for (Instruction& instruction : block.code) {
        if (turned_along(instruction) != across) continue;
        const Dtype dtype = kernel.buffers[instruction.buffer].dtype;
        const auto scratch = static_cast<loops::BufferId>(kernel.buffers.size());
        kernel.buffers.push_back({dtype, loops::Role::Scratch, tile.across_side * Tile::kSide, {}});
        tile.loads.push_back({instruction.buffer, scratch, instruction.index});
        instruction.buffer = scratch;
        instruction.index = Tile::kSide * (Expr::variable(across) - Expr::variable(tile.across_origin)) +
                            Expr::variable(schedule_.rows.variable) - Expr::variable(tile.lane_origin);
      }
    }
    // Tiles are squares of single vectors' multiples.
    schedule_.rows.wide = std::min(schedule_.rows.wide, Tile::kSide);
  }

  Lanes lanes_for(const Loop& loop, int registers) {
    Lanes lanes;
    lanes.variable = loop.variable;
    if (variant_.narrow) registers = 1;
    if (variant_.wide) registers *= 2;
    lanes.narrow = machine_.masks ? register_lanes_ : 1;
    lanes.wide = register_lanes_ * registers;
    if (loop.extent.is_constant()) {
      const auto extent = static_cast<double>(loop.extent.number());
      // Not wider than the loop is long; where one register holds all of it, one masked vector does it.
      while (lanes.wide > register_lanes_ && lanes.wide > extent) lanes.wide /= 2;
      if (machine_.masks) {
        lanes.narrow = power_of_two_at_least(extent, register_lanes_);
        lanes.wide = std::max(lanes.wide, lanes.narrow);
        if (extent < lanes.wide) lanes.wide = lanes.narrow;
      } else {
        while (lanes.wide > 1 && lanes.wide > extent) lanes.wide /= 2;
      }
    }
    return lanes;
  }

  double cost_within(const Block& block, size_t& lane_loop) const {
    if (!block.is_stage()) {
      double cost = 0;
      for (const Instruction& instruction : block.code)
        cost += is_access(instruction.op) ? 1.0 : weight(instruction.op);
      return cost;
    }
    if (loops::runs_in_order(block)) {
      double cost = 0;
      for (const Instruction& instruction : block.code)
        cost += is_access(instruction.op) ? 1.0 : weight(instruction.op);
      return cost * iterations(block);
    }
    double best = 1e300;
    for (size_t i = 0; i < block.loops.size(); ++i) {
      double cost = 0;
      const double extent = guess(block.loops[i].extent);
      const double lanes = register_lanes_;
      for (const Instruction& instruction : block.code) {
        cost += cost_along(instruction, Expr::variable(block.loops[i].variable), lanes);
      }
      cost *= iterations(block) /
              utilisation(extent, std::min<double>(lanes, power_of_two_at_least(extent, register_lanes_)));
      if (cost <= best) {
        best = cost;
        lane_loop = i;
      }
    }
    for (const Instruction& instruction : block.code) {
      if (loops::facts(instruction.op).op_class == OpClass::Reduce) best += 6;  // adding up the lanes
    }
    return best + 4;  // starting and ending the loop
  }

  double cost_across(const Loop& loop) const {
    const Expr variable = Expr::variable(loop.variable);
    double cost = 0;
    for (const Block& block : schedule_.kernel.blocks) {
      for (const Loop& inner : block.loops) {
        if (shapes::depends_on(inner.extent, variable)) return 1e301;  // the lanes would not leave the loop together
      }
      double body = 0;
      for (const Instruction& instruction : block.code) body += cost_along(instruction, variable, register_lanes_);
      cost += body * iterations(block);
    }
    const double extent = guess(loop.extent);
    return cost / utilisation(extent, register_lanes_);
  }

  const Machine& machine_;
  const Variant& variant_;
  Schedule schedule_;
  int register_lanes_ = 1;
};

}  // namespace

Schedule make_schedule(Kernel kernel, const Machine& machine) { return make_schedule(std::move(kernel), machine, {}); }

Schedule make_schedule(Kernel kernel, const Machine& machine, const Variant& variant) {
  return Scheduler(std::move(kernel), machine, variant).run();
}

Expr unit_cost(const Kernel& kernel) {
  Expr cost = 0;
  // Extents that depend on parallel variables count as the greatest they can be, roughly: the variables are zero.
  const auto at_start = [](Expr extent) {
    return shapes::substitute(extent, [](Expr leaf) -> std::optional<Expr> {
      if (leaf.kind() == ExprKind::Variable) return Expr(0);
      return std::nullopt;
    });
  };
  for (const Block& block : kernel.blocks) {
    int64_t bytes = 0;
    for (const Instruction& instruction : block.code) {
      if (is_access(instruction.op)) {
        bytes += loops::dtype_bytes(kernel.buffers[instruction.buffer].dtype);
      } else if (instruction.op >= Op::Exp && instruction.op <= Op::Lgamma) {
        bytes += 8;
      } else if (instruction.op == Op::Pow || instruction.op == Op::Atan2 || instruction.op == Op::Fmod) {
        bytes += 32;
      } else {
        bytes += 1;
      }
    }
    Expr times = 1;
    for (const Loop& loop : block.loops) times *= at_start(loop.extent);
    cost += times * bytes;
  }
  return shapes::max(cost, 1);
}

}  // namespace magneto::codegen
