#include "loops/normalize.h"

#include <algorithm>
#include <memory>

namespace magneto::loops {
namespace {

using shapes::ExprKind;
using shapes::Range;

/// Calls `change` for each expression that may hold the variables of `blocks`.
template <typename Change>
void for_each_expr(Kernel& kernel, const Change& change) {
  for (Block& block : kernel.blocks) {
    for (Loop& loop : block.loops) change(loop.extent);
    for (Instruction& instruction : block.code) change(instruction.index);
  }
}

void replace(Kernel& kernel, Expr variable, Expr by) {
  for_each_expr(kernel, [&](Expr& expr) {
    if (!shapes::depends_on(expr, variable)) return;
    expr = shapes::substitute(expr, [&](Expr leaf) -> std::optional<Expr> {
      if (leaf == variable) return by;
      return std::nullopt;
    });
  });
}

void drop_single_iterations(Kernel& kernel, std::vector<Loop>& loops, size_t keep) {
  for (size_t i = 0; i < loops.size();) {
    if (loops[i].extent.is_constant(1) && loops.size() > keep) {
      replace(kernel, Expr::variable(loops[i].variable), 0);
      loops.erase(loops.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

/// True if every expression uses outer and inner only as outer*extent + inner, scaled.
bool mergeable(Kernel& kernel, const Loop& outer, const Loop& inner) {
  const Expr o = Expr::variable(outer.variable), i = Expr::variable(inner.variable);
  bool possible = true;
  for (const Block& block : kernel.blocks) {
    for (const Loop& loop : block.loops) {
      possible &= !shapes::depends_on(loop.extent, o) && !shapes::depends_on(loop.extent, i);
    }
  }
  for_each_expr(kernel, [&](Expr& expr) {
    if (!possible) return;
    const bool uses_outer = shapes::depends_on(expr, o), uses_inner = shapes::depends_on(expr, i);
    if (!uses_outer && !uses_inner) return;
    const auto outer_part = shapes::linear_in(expr, o), inner_part = shapes::linear_in(expr, i);
    possible = outer_part && inner_part && outer_part->coefficient == inner_part->coefficient * inner.extent &&
               !shapes::depends_on(outer_part->coefficient, i);
  });
  return possible;
}

void merge_loops(Kernel& kernel, std::vector<Loop>& loops, bool any_order) {
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t o = 0; o < loops.size() && !changed; ++o) {
      for (size_t i = 0; i < loops.size() && !changed; ++i) {
        if (o == i || (!any_order && i != o + 1) || !mergeable(kernel, loops[o], loops[i])) continue;
        const Loop merged{kernel.variable_count++, loops[o].extent * loops[i].extent};
        replace(kernel, Expr::variable(loops[o].variable), 0);
        replace(kernel, Expr::variable(loops[i].variable), Expr::variable(merged.variable));
        loops[i] = merged;
        loops.erase(loops.begin() + static_cast<ptrdiff_t>(o));
        changed = true;
      }
    }
  }
}

}  // namespace

std::function<Range(Expr)> leaf_ranges(const Kernel& kernel) {
  std::vector<Range> variables(kernel.variable_count, Range{0, INT64_MAX});
  auto known = std::make_shared<std::vector<Range>>(std::move(variables));
  const std::function<Range(Expr)> ranges = [known, symbols = kernel.symbols](Expr leaf) -> Range {
    if (leaf.kind() == ExprKind::Symbol) return std::ranges::find(symbols, leaf.id(), &Symbol::id)->range;
    if (leaf.kind() == ExprKind::Variable) return (*known)[leaf.id()];
    return {};
  };
  const auto note = [&](const std::vector<Loop>& loops) {
    for (const Loop& loop : loops) {
      const int64_t high = shapes::range_of(loop.extent, ranges).high;
      (*known)[loop.variable] = {0, high == INT64_MAX ? high : std::max<int64_t>(high - 1, 0)};
    }
  };
  note(kernel.parallel);
  for (const Block& block : kernel.blocks) note(block.loops);
  return ranges;
}

bool runs_in_order(const Block& block) {
  return std::any_of(block.code.begin(), block.code.end(), [](const Instruction& instruction) {
    const bool stores = instruction.op == Op::Store || instruction.op == Op::StoreAdd;
    return facts(instruction.op).op_class == OpClass::Scan || instruction.op == Op::StoreAdd ||
           (stores && shapes::any_leaf(instruction.index, [](Expr leaf) { return leaf.kind() == ExprKind::Value; }));
  });
}

void normalize(Kernel& kernel) {
  const auto ranges = leaf_ranges(kernel);
  for_each_expr(kernel, [&](Expr& expr) { expr = shapes::simplify(expr, ranges); });
  drop_single_iterations(kernel, kernel.parallel, 0);
  merge_loops(kernel, kernel.parallel, true);
  for (Block& block : kernel.blocks) {
    if (!block.is_stage()) continue;
    drop_single_iterations(kernel, block.loops, 1);
    merge_loops(kernel, block.loops, !runs_in_order(block));
  }
}

}  // namespace magneto::loops
