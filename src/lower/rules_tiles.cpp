// A tile of what is computed: the expression anew, of nothing but the tile's elements. What else the whole tensor has
// is computed nowhere (passes/tile_regions.cpp).
#include <map>

#include "lower/lowering.h"

namespace magneto::lower {
namespace {

/// Expressions at the elements that a map leads to, from the leaves on.
class TileBuilder {
 public:
  explicit TileBuilder(Lowering& lowering) : lowering_(lowering), dag_(lowering.dag) {}

  NodeId build(NodeId id, const std::vector<Expr>& map, const Sizes& sizes) {
    std::pair<NodeId, std::vector<const void*>> key{id, {}};
    for (const Expr expr : map) key.second.push_back(expr.identity());
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    return known_[std::move(key)] = make(id, map, sizes);
  }

 private:
  static std::vector<Expr> through(const std::vector<Expr>& exprs, const std::vector<Expr>& map) {
    std::vector<Expr> result;
    for (const Expr expr : exprs) {
      result.push_back(shapes::substitute(expr, [&](Expr leaf) -> std::optional<Expr> {
        if (leaf.kind() != shapes::ExprKind::Variable) return std::nullopt;
        return map[leaf.id()];
      }));
    }
    return result;
  }

  NodeId make(NodeId id, const std::vector<Expr>& map, const Sizes& sizes) {
    const Node node = dag_[id];  // a copy: making nodes moves the others
    switch (node.kind) {
      case NodeKind::Leaf:
      case NodeKind::Number:
      case NodeKind::Index:
        return dag_.view(id, map, sizes);
      case NodeKind::View:
        return build(node.operands[0], through(node.map, map), sizes);
      case NodeKind::Math: {
        if (node.op == Op::Cast) return dag_.cast(node.dtype, build(node.operands[0], map, sizes));
        std::vector<NodeId> operands;
        for (const NodeId operand : node.operands) operands.push_back(build(operand, map, sizes));
        return dag_.math(node.op, operands);
      }
      case NodeKind::Guard: {
        const std::vector<Expr> at = through(node.map, map);
        std::vector<Condition> conditions;
        for (size_t k = 0; k < at.size(); ++k) conditions.push_back({at[k], node.data[2 * k], node.data[2 * k + 1]});
        const NodeId inside = build(node.operands[0], map, sizes), outside = build(node.operands[1], map, sizes);
        return dag_.guard(conditions, inside, outside);
      }
      case NodeKind::Gather: {
        if (dag_[node.operands[0]].kind != NodeKind::Leaf) throw Declined{};
        std::vector<NodeId> indices;
        for (size_t k = 1; k < node.operands.size(); ++k) indices.push_back(build(node.operands[k], map, sizes));
        lowering_.lookups_of_tiles.insert(id);
        return dag_.gather(node.operands[0], indices, through(node.map, map), node.data, sizes);
      }
      default:  // reads elements that lie in other tiles
        throw Declined{};
    }
  }

  Lowering& lowering_;
  Dag& dag_;
  std::map<std::pair<NodeId, std::vector<const void*>>, NodeId> known_;
};

/// (tile, sizes, [row, column]): the tensor of these sizes that has the tile there, and elsewhere what nobody reads.
bool from_tile(Call& call) {
  const T tile = call.raw(0);
  const Sizes sizes = call.result_sizes(), at = call.size_list(2);
  const int64_t rank = static_cast<int64_t>(sizes.size());
  return call.set_result(
      {tile.dag,
       tile.dag->view(tile.id, {variable(rank - 2) - at[0].expr(), variable(rank - 1) - at[1].expr()}, sizes)});
}

/// (whole, at, sizes): of a tensor of up to four dimensions, the last of which are rows and columns.
bool tile(Call& call) {
  const T whole = call.raw(0);
  const Sizes from = whole.sizes(), at = call.size_list(1), sizes = call.result_sizes();
  if (from.size() > at.size()) return false;
  std::vector<Expr> map;
  for (size_t i = 0; i < from.size(); ++i) {
    const size_t dim = at.size() - from.size() + i;
    const Expr first = at[dim].expr();
    const bool inner = dim + 2 >= at.size();
    map.push_back(from[i] == 1 ? Expr(0) : inner ? first + variable(static_cast<int64_t>(dim + 2 - at.size())) : first);
  }
  return call.set_result({whole.dag, TileBuilder(call.lowering()).build(whole.id, map, sizes)});
}

}  // namespace

std::span<const RuleRow> tiles_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_lowering_tiles(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::lower
