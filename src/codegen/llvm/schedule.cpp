#include "codegen/llvm/schedule.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "codegen/llvm/column_sums.h"
#include "codegen/llvm/streaming.h"
#include "codegen/llvm/tile.h"
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
/// Scratch memory of all lanes' rows stays in the second cache.
constexpr int64_t kWideScratchBytes = 128 * 1024;

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
  const bool loads_pairs =
      linear && !store && (linear->coefficient.is_constant(2) || linear->coefficient.is_constant(-1));
  if (loads_pairs && !indirect) return 2.5 / lanes;
  if (indirect || !linear || !linear->coefficient.is_constant()) return store ? 2.0 : 1.2;
  if (linear->coefficient.is_constant(0)) return store ? 1.0 : 0.3 / lanes;
  if (linear->coefficient.is_constant(1)) return 1.0 / lanes;
  return store ? 2.0 : 1.2;
}

double turn_cost(const Instruction& instruction) { return instruction.op == Op::Load ? kTurnedLoad : kTurnedStore; }

/// Whether its elements are accessed one by one when the lanes run along `variable`.
bool is_scattered(const Instruction& instruction, Expr variable) {
  const auto linear = shapes::linear_in(instruction.index, variable);
  if (!linear || !linear->coefficient.is_constant()) return true;
  const int64_t stride = linear->coefficient.number();
  return stride != 0 && stride != 1 && !(instruction.op == Op::Load && (stride == 2 || stride == -1));
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

/// Bytes of the widest value that takes part: it decides how many lanes a register has. Totals of floats, and what is
/// made of them, are one number where there are many floats.
int widest(const Kernel& kernel) {
  int64_t bytes = 1;
  bool floats = false;
  std::vector<bool> total(kernel.value_count, false);
  for (const Block& block : kernel.blocks) {
    for (const Instruction& instruction : block.code) {
      if (instruction.op == Op::Index || instruction.op == Op::Constant) continue;
      const bool of_total = instruction.dtype == Dtype::F64 &&
                            std::any_of(instruction.operands.begin(), instruction.operands.end(),
                                        [&](loops::ValueId id) { return id != loops::kNoValue && total[id]; });
      if (instruction.op == Op::ReduceSumWide || of_total) {
        if (instruction.result != loops::kNoValue) total[instruction.result] = true;
        continue;
      }
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

/// A stage that runs in order of which vectors of the last loop's iterations may run at once: each adds to a row that
/// the others add to at other elements.
bool adds_rows(const Block& block) {
  if (!block.is_stage()) return false;
  const Expr along = Expr::variable(block.loops.back().variable);
  std::vector<bool> varies;
  const auto is_varying = [&](loops::ValueId id) {
    return id != loops::kNoValue && static_cast<size_t>(id) < varies.size() && varies[static_cast<size_t>(id)];
  };
  for (const Instruction& instruction : block.code) {
    if (loops::facts(instruction.op).op_class == OpClass::Scan) return false;
    bool indirect = false, depends = std::ranges::any_of(instruction.operands, is_varying);
    shapes::any_leaf(instruction.index, [&](Expr leaf) {
      depends |= leaf == along || (leaf.kind() == ExprKind::Value && is_varying(leaf.id()));
      indirect |= leaf.kind() == ExprKind::Value && is_varying(leaf.id());
      return false;
    });
    if (instruction.op == Op::Store || instruction.op == Op::StoreAdd) {
      const auto linear = shapes::linear_in(instruction.index, along);
      if (indirect || !linear || !linear->coefficient.is_constant(1)) return false;
    }
    if (instruction.result == loops::kNoValue || !depends) continue;
    varies.resize(std::max(varies.size(), static_cast<size_t>(instruction.result) + 1));
    varies[static_cast<size_t>(instruction.result)] = true;
  }
  return true;
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

    own_buffers_ = kernel.buffers.size();
    if (const std::vector<int32_t> strips = strip_loops(kernel, machine_, false); !strips.empty()) strip_ = strips[0];
    strips_across_ = strip_loops(kernel, machine_, true);
    double within = 0;
    std::vector<size_t> lane_loops(kernel.blocks.size(), 0);
    for (size_t i = 0; i < kernel.blocks.size(); ++i) within += cost_within(kernel.blocks[i], lane_loops[i]);
    const bool staged =
        std::any_of(kernel.blocks.begin(), kernel.blocks.end(), [](const Block& b) { return b.is_stage(); });
    double across = 1e300;
    size_t row_loop = 0;
    std::vector<int32_t> turned;
    // A place in scratch memory for each lane: four at least.
    const bool wide_enough = scratch_row_bytes() * 4 <= kWideScratchBytes;
    for (size_t i = 0; wide_enough && i < kernel.parallel.size(); ++i) {
      const std::vector<int32_t> loops =
          staged ? std::vector<int32_t>{} : turned_loops(kernel, kernel.parallel[i].variable, machine_);
      const double cost = cost_across(kernel.parallel[i], loops);
      // The later loop where it makes no difference: that is the order of the memory.
      if (cost <= across) {
        across = cost;
        row_loop = i;
        turned = loops;
      }
    }
    bool across_rows = across < within;
    if (variant_.other_lanes && across < 1e300) across_rows = !across_rows;
    if (!kernel.parallel.empty() && across_rows) {
      std::rotate(kernel.parallel.begin() + static_cast<ptrdiff_t>(row_loop),
                  kernel.parallel.begin() + static_cast<ptrdiff_t>(row_loop) + 1, kernel.parallel.end());
      if (!variant_.other_lanes && sum_in_strips(kernel)) {
        across_rows = false;
        schedule_.ahead = ahead_in_strips(kernel);
        strip_ = -1;
        schedule_.stages.resize(kernel.blocks.size());
        lane_loops.clear();
        for (const Block& block : kernel.blocks) lane_loops.push_back(block.loops.size() - 1);
      }
    }
    if (!kernel.parallel.empty() && across_rows) {
      const Loop& lanes = kernel.parallel.back();
      bool heavy = false, thin = true;
      for (const Block& block : kernel.blocks) {
        heavy |= is_heavy(block);
        thin &= block.code.size() <= 2;
      }
      // A sum of columns and its like: all that a line of memory gives at once, up to a quarter of a page.
      const int of_stage = thin ? 16 : 4;
      if (has_strips_across(lanes.variable)) make_strips(schedule_, lanes.variable, true);
      if (!turned.empty()) make_blocks(schedule_, turned);
      const bool scattered = has_scattered(Expr::variable(kernel.parallel.back().variable));
      schedule_.rows = lanes_for(kernel.parallel.back(), heavy || scattered ? 1 : staged ? of_stage : 2);
      if (schedule_.tile) schedule_.rows.wide = std::min(schedule_.rows.wide, Tile::kSide);
      if (schedule_.tile && staged) {
        schedule_.rows.wide = static_cast<int>(std::min<int64_t>(schedule_.rows.wide, schedule_.tile.across[0].length));
      }
      widen_scratch();
    } else {
      for (size_t i = 0; i < kernel.blocks.size(); ++i) {
        Block& block = kernel.blocks[i];
        if (!block.is_stage() || loops::runs_in_order(block)) continue;
        const auto chosen = block.loops.begin() + static_cast<ptrdiff_t>(lane_loops[i]);
        std::rotate(chosen, chosen + 1, block.loops.end());
      }
      if (strip_ >= 0) make_strips(schedule_, strip_, false);
      for (size_t i = 0; i < kernel.blocks.size(); ++i) {
        Block& block = kernel.blocks[i];
        if (!block.is_stage() || (loops::runs_in_order(block) && !adds_rows(block))) continue;
        // Short rows are one vector in all stages: then they stay in registers (known_elements.h).
        const Expr row = block.loops.back().extent;
        const bool short_row = row.is_constant() && row.number() <= 4 * register_lanes_;
        const bool scattered = std::any_of(block.code.begin(), block.code.end(), [&](const Instruction& instruction) {
          return is_access(instruction.op) && is_scattered(instruction, Expr::variable(block.loops.back().variable));
        });
        schedule_.stages[i] =
            lanes_for(block.loops.back(), is_heavy(block) || scattered        ? (has_reduction(block) ? 2 : 1)
                                          : has_reduction(block) || short_row ? 4
                                                                              : 2);
      }
    }
    schedule_.streamed = find_streamed(kernel, machine_);
    if (schedule_.ahead.empty()) schedule_.ahead = find_ahead(schedule_);
    set_units();
    return std::move(schedule_);
  }

 private:
  void set_units() {
    const Kernel& kernel = schedule_.kernel;
    const Tile& tile = schedule_.tile;
    schedule_.units = 1;
    for (const Loop& loop : kernel.parallel) {
      const Expr extent = shapes::max(loop.extent, 0);
      const auto side = std::find_if(tile.across.begin(), tile.across.end(),
                                     [&](const Tile::Side& candidate) { return candidate.variable == loop.variable; });
      if (side != tile.across.end()) {
        schedule_.units *= shapes::ceil_div(extent, side->length);
        schedule_.rows_per_unit *= side->length;
      } else if (tile && loop.variable == tile.lanes.variable) {
        schedule_.rows_per_unit *= extent;
        schedule_.units *= shapes::min(extent, 1);  // no unit at all where there is no row
      } else {
        schedule_.units *= extent;
      }
    }
  }

  /// Lanes across rows have a place each in scratch memory.
  void widen_scratch() {
    Kernel& kernel = schedule_.kernel;
    const int64_t row = scratch_row_bytes();
    if (row == 0) return;
    Lanes& rows = schedule_.rows;
    while (rows.wide > 1 && rows.wide * row > kWideScratchBytes) rows.wide /= 2;
    rows.narrow = std::min(rows.narrow, rows.wide);
    schedule_.first_lane = kernel.variable_count++;
    const Expr lane = Expr::variable(rows.variable) - Expr::variable(schedule_.first_lane);
    for (Block& block : kernel.blocks) {
      for (Instruction& instruction : block.code) {
        if (is_scratch(instruction)) instruction.index = instruction.index * rows.wide + lane;
      }
    }
    for (size_t i = 0; i < own_buffers_; ++i) {
      loops::Buffer& buffer = kernel.buffers[i];
      if (buffer.role == loops::Role::Scratch) buffer.size = buffer.size * rows.wide;
    }
  }

  int64_t scratch_row_bytes() const {
    int64_t bytes = 0;
    for (size_t i = 0; i < own_buffers_; ++i) {
      const loops::Buffer& buffer = schedule_.kernel.buffers[i];
      if (buffer.role == loops::Role::Scratch) bytes += buffer.size.number() * loops::dtype_bytes(buffer.dtype);
    }
    return bytes;
  }

  bool is_scratch(const Instruction& instruction) const {
    return is_access(instruction.op) && static_cast<size_t>(instruction.buffer) < own_buffers_ &&
           schedule_.kernel.buffers[static_cast<size_t>(instruction.buffer)].role == loops::Role::Scratch;
  }

  /// Elements are loaded and stored one by one: more registers at once would only make more code.
  bool has_scattered(Expr variable) const {
    for (const Block& block : schedule_.kernel.blocks) {
      for (const Instruction& instruction : block.code) {
        if (is_access(instruction.op) && !is_scratch(instruction) && is_scattered(instruction, variable)) return true;
      }
    }
    return false;
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
        // What is left is done one by one: vectors are as wide as leaves the least work.
        const auto work = [&](int wide) {
          const int64_t whole = loop.extent.number() / wide, left = loop.extent.number() % wide;
          return static_cast<double>(whole) * (0.5 + static_cast<double>(wide) / register_lanes_) +
                 static_cast<double>(left);
        };
        int best = lanes.wide;
        for (int wide = lanes.wide; wide >= register_lanes_; wide /= 2) {
          if (work(wide) < work(best)) best = wide;
        }
        lanes.wide = best;
      }
    }
    return lanes;
  }

  bool has_strips_across(int32_t variable) const {
    return std::find(strips_across_.begin(), strips_across_.end(), variable) != strips_across_.end();
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
      const bool rows = adds_rows(block);
      if (rows) lane_loop = block.loops.size() - 1;
      for (const Instruction& instruction : block.code) {
        const Expr along = Expr::variable(block.loops.back().variable);
        cost += rows                        ? cost_along(instruction, along, register_lanes_)
                : is_access(instruction.op) ? 1.0
                                            : weight(instruction.op);
      }
      return cost * iterations(block);
    }
    double best = 1e300;
    for (size_t i = 0; i < block.loops.size(); ++i) {
      double cost = 0;
      const double extent = guess(block.loops[i].extent);
      const double lanes = register_lanes_;
      for (const Instruction& instruction : block.code) {
        const int32_t along = block.loops[i].variable;
        const bool turned = strip_ >= 0 && has_strips(block) && is_turned(schedule_.kernel, instruction, along, strip_);
        cost += turned ? turn_cost(instruction) : cost_along(instruction, Expr::variable(along), lanes);
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

  double cost_across(const Loop& loop, const std::vector<int32_t>& turned) const {
    const Expr variable = Expr::variable(loop.variable);
    double cost = 0;
    for (const Block& block : schedule_.kernel.blocks) {
      for (const Loop& inner : block.loops) {
        if (shapes::depends_on(inner.extent, variable)) return 1e301;  // the lanes would not leave the loop together
      }
      double body = 0;
      for (const Instruction& instruction : block.code) {
        const auto is_turned_along = [&](int32_t along) {
          return is_turned(schedule_.kernel, instruction, loop.variable, along);
        };
        const bool turns =
            std::any_of(turned.begin(), turned.end(), is_turned_along) ||
            (has_strips_across(loop.variable) && has_strips(block) && is_turned_along(block.loops[0].variable));
        body += turns                     ? turn_cost(instruction)
                : is_scratch(instruction) ? 1.0 / register_lanes_
                                          : cost_along(instruction, variable, register_lanes_);
      }
      cost += body * iterations(block);
    }
    const double extent = guess(loop.extent);
    return cost / utilisation(extent, register_lanes_);
  }

  const Machine& machine_;
  const Variant& variant_;
  Schedule schedule_;
  int register_lanes_ = 1;
  size_t own_buffers_ = 0;  // before tiles have theirs
  int32_t strip_ = -1;      // the parallel loop of which strips would be turned, with lanes within rows
  std::vector<int32_t> strips_across_;
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
