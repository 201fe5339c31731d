#include "lower/lookups.h"

#include <algorithm>
#include <vector>

namespace magneto::lower {

namespace {

/// Every element of a tensor of `from` sizes is at `map` of some index below `sizes`.
bool covers(const Dag& dag, const std::vector<Expr>& map, const Sizes& sizes, const Sizes& from) {
  const Sizes strides = row_major(from);
  Expr position(0);
  for (size_t k = 0; k < map.size(); ++k) position += map[k] * strides[k].expr();
  position = dag.simplify(position, sizes);
  struct Step {
    Size stride, extent;
  };
  std::vector<Step> steps;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto linear = shapes::linear_in(position, Expr::variable(static_cast<int32_t>(i)));
    if (!linear || shapes::has_variable(linear->coefficient)) return false;
    position = linear->rest;
    const Size stride = dag.symbols.size(linear->coefficient);
    if (stride != 0) {
      steps.push_back({stride, sizes[i]});
    } else if (dag.may_be_empty({sizes[i]})) {
      return false;
    }
  }
  // From the last element backwards, as a flip reads it, is as good.
  for (Step& step : steps) {
    if (!step.stride.is_static() || step.stride.number() >= 0) continue;
    position += step.stride.expr() * (step.extent - 1).expr();
    step.stride = -step.stride.number();
  }
  if (position != Expr(0)) return false;
  std::ranges::stable_sort(steps, {}, [](const Step& step) { return step.stride.hint(); });
  Size covered = 1;  // positions below are read
  for (const auto& [stride, extent] : steps) {
    const bool joins = stride == covered || (stride.is_static() && covered.is_static() &&
                                             stride.number() <= covered.number() && extent.is_static() && extent != 0);
    if (!joins) return false;
    covered = stride == covered ? covered * extent : covered + stride * (extent - 1);
  }
  return covered == count(from);
}

}  // namespace

std::set<int32_t> partly_done_lookups(const Lowering& lowering) {
  const Dag& dag = lowering.dag;
  std::set<int32_t> result;
  const auto is_lookup = [&](NodeId id) {
    return dag[id].kind == NodeKind::Gather && !lowering.lookups_of_tiles.contains(id);
  };
  bool any = false;
  for (NodeId id = 0; id < dag.size() && !any; ++id) any = is_lookup(id);
  if (!any) return result;

  // Which nodes are computed whole. Operands have lower numbers than what reads them.
  std::vector<bool> whole(dag.size(), false);
  for (const Root& root : lowering.roots) whole[root.node] = true;
  for (NodeId id = dag.size(); id-- > 0;) {
    const Node& node = dag[id];
    if (is_lookup(id) && !whole[id]) result.insert(lowering.origin_of(id));
    if (!whole[id]) continue;
    switch (node.kind) {
      case NodeKind::Math:
      case NodeKind::Reduce:
      case NodeKind::Extra:
      case NodeKind::Scan:
      case NodeKind::Scatter:
        for (const NodeId operand : node.operands) whole[operand] = true;
        break;
      case NodeKind::Gather:
        for (size_t k = 1; k < node.operands.size(); ++k) whole[node.operands[k]] = true;
        break;
      case NodeKind::View:
        if (covers(dag, node.map, node.sizes, dag[node.operands[0]].sizes)) whole[node.operands[0]] = true;
        break;
      default:  // of a Guard, one operand or the other
        break;
    }
  }
  result.erase(-1);
  return result;
}

}  // namespace magneto::lower
