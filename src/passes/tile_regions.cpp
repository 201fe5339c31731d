// What is computed of each tile of scores, as graphs: the operators that make the softmax's operand, on one tile of it.
//
//     %5 = magneto::from_tile(%scores, [2, 8, s0, s0], row, column)   stands for all scores
//     ...                                                             the operators of the graph around, as they are
//     %9 = magneto::tile(%8, [batch, head, row, column], [rows, columns])
//
// Lowering computes of these operators what the last one reads (lower/rules_tiles.cpp).
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "graph/aliases.h"
#include "graph/partition.h"
#include "graph/symbols.h"
#include "passes/rewriter.h"
#include "passes/tiles.h"

namespace magneto::passes {

using graph::AtenArg;
using graph::AtenNode;
using graph::kNoValue;
using graph::TensorMeta;
using graph::ValueId;
using shapes::Expr;
using shapes::Size;
using shapes::Sizes;

void give_geometry(TensorMeta& meta, const Sizes& sizes) {
  Sizes strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  meta.sizes = shapes::hints(sizes);
  meta.strides = shapes::hints(strides);
  meta.storage_offset = 0;
  meta.symbolic.reset();
  if (shapes::all_static(sizes)) return;
  meta.symbolic.emplace();
  for (const Size& size : sizes) meta.symbolic->sizes.push_back(size.expr());
  for (const Size& stride : strides) meta.symbolic->strides.push_back(stride.expr());
}

AtenArg size_list(const Sizes& sizes) {
  if (shapes::all_static(sizes)) return c10::IValue(shapes::numbers(sizes));
  graph::SizeArg list;
  for (const Size& size : sizes) list.sizes.push_back(size.expr());
  return list;
}

namespace {

/// Where a tile is and how large: symbols of the region, found in the sizes of its first two inputs.
struct Place {
  Size batch, head, row, column, rows, columns;
};

/// Numbers that stand for "some tile" while code is chosen.
constexpr int64_t kHint = 64;

class RegionMaker {
 public:
  RegionMaker(const graph::Graph& whole, const TiledAttention& found, const std::vector<ValueId>& operands)
      : whole_(whole), found_(found), map_(whole.values.size(), kNoValue) {
    for (const graph::SymbolBinding& symbol : whole.symbols) next_ = std::max(next_, symbol.symbol + 1);
    const int32_t first = next_;
    for (Size* size : {&at_.batch, &at_.head, &at_.row, &at_.column, &at_.rows, &at_.columns})
      *size = Size(Expr::symbol(next_++), kHint);
    const c10::ScalarType dtype = whole.values[found.masked].meta.dtype;
    const Sizes out = graph::sizes_of(whole.values[found.value].meta);
    position_ = input("position", c10::kByte, {at_.batch, at_.head, at_.row, at_.column});
    scores_ = input("scores", dtype, {at_.rows, at_.columns});
    result_ = input("result", dtype, {at_.rows, out[3]});
    greatest_ = input("greatest", dtype, {at_.rows});
    sum_ = input("sum", dtype, {at_.rows});
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    for (int32_t i = 0; i < 6; ++i) {
      const shapes::Range range{i < 4 ? 0 : 1, kMost};
      made_.symbols.push_back({first + i, i < 4 ? position_ : scores_, i < 4 ? i : i - 4, range, kHint});
    }
    for (const ValueId id : operands) {
      TensorMeta meta = whole.values[id].meta;
      meta.requires_grad = false;
      map_[id] = made_.add_input("%" + std::to_string(id), std::move(meta));
    }
    for (graph::SymbolBinding symbol : whole.symbols) {
      if (map_[symbol.value] == kNoValue) continue;
      symbol.value = map_[symbol.value];
      made_.symbols.push_back(symbol);
    }
  }

  /// All that the softmax is of, and its part of the work.
  graph::Graph scores() {
    add_inside({found_.masked});
    const c10::ScalarType dtype = meta(scores_).dtype;
    const ValueId tile = tile_of(found_.masked);
    const Sizes row = {at_.rows};
    const ValueId most =
        add("aten::amax", "", {tile, c10::IValue(std::vector<int64_t>{-1}), c10::IValue(false)}, dtype, row);
    const ValueId greatest = add("aten::maximum", "", {greatest_, most}, dtype, row);
    // A row without any score so far: nothing is subtracted from minus infinity.
    const ValueId none =
        add("aten::eq", "Scalar", {greatest, c10::IValue(-std::numeric_limits<double>::infinity())}, c10::kBool, row);
    const ValueId zero = made_.add_constant(at::zeros({}, at::TensorOptions().dtype(dtype)));
    const ValueId from = add("aten::where", "self", {none, zero, greatest}, dtype, row);
    const ValueId factor = add("aten::exp", "", {difference(greatest_, from, row)}, dtype, row);
    const ValueId weights =
        add("aten::exp", "", {difference(tile, column(from), {at_.rows, at_.columns})}, dtype, {at_.rows, at_.columns});
    const ValueId added =
        add("aten::sum", "dim_IntList",
            {weights, c10::IValue(std::vector<int64_t>{-1}), c10::IValue(false), c10::IValue()}, dtype, row);
    const ValueId scaled = add("aten::mul", "Tensor", {sum_, factor}, dtype, row);
    const ValueId sum = add("aten::add", "Tensor", {scaled, added, c10::IValue(1)}, dtype, row);
    const Sizes out = graph::sizes_of(meta(result_));
    write(result_, add("aten::mul", "Tensor", {result_, column(factor)}, dtype, out));
    write(sum_, sum);
    write(greatest_, greatest);
    made_.outputs.push_back(weights);
    return std::move(made_);
  }

  /// Some element has all conditions.
  graph::Graph live() {
    add_inside(found_.conditions);
    ValueId all = kNoValue;
    for (const ValueId id : found_.conditions) {
      const ValueId tile = tile_of(id);
      all = all == kNoValue ? tile : both("aten::bitwise_and", all, tile);
    }
    made_.outputs.push_back(add("aten::any", "", {all}, c10::kBool, {}));
    return std::move(made_);
  }

  /// For a question that need not be asked.
  graph::Graph nothing() {
    made_.outputs.push_back(made_.add_constant(at::scalar_tensor(false, at::kBool)));
    return std::move(made_);
  }

  /// Some index that is looked up is out of bounds.
  graph::Graph lookups() {
    std::vector<ValueId> all;
    for (const int32_t i : found_.lookups) {
      const auto& indices = std::get<std::vector<ValueId>>(whole_.aten_nodes[i].args[1]);
      all.insert(all.end(), indices.begin(), indices.end());
    }
    add_inside(all);
    ValueId bad = kNoValue;
    for (const int32_t i : found_.lookups) {
      const AtenNode& node = whole_.aten_nodes[i];
      const Sizes table = graph::sizes_of(whole_.values[operand(node, 0)].meta);
      const auto& indices = std::get<std::vector<ValueId>>(node.args[1]);
      for (size_t dim = 0; dim < indices.size(); ++dim) {
        const ValueId tile = tile_of(indices[dim]);
        for (const bool above : {true, false}) {
          const Size bound = above ? table[dim] : Size(0) - table[dim];
          const AtenArg limit =
              bound.is_static() ? AtenArg(c10::IValue(bound.number())) : AtenArg(graph::SizeArg{{bound.expr()}, false});
          const ValueId outside =
              add(above ? "aten::ge" : "aten::lt", "Scalar", {tile, limit}, c10::kBool, {at_.rows, at_.columns});
          bad = bad == kNoValue ? outside : both("aten::bitwise_or", bad, outside);
        }
      }
    }
    made_.outputs.push_back(add("aten::any", "", {bad}, c10::kBool, {}));
    return std::move(made_);
  }

 private:
  const TensorMeta& meta(ValueId id) const { return made_.values[id].meta; }

  ValueId input(const char* name, c10::ScalarType dtype, const Sizes& sizes) {
    TensorMeta meta;
    meta.dtype = dtype;
    give_geometry(meta, sizes);
    return made_.add_input(name, std::move(meta));
  }

  ValueId add(const char* name, const char* overload, std::vector<AtenArg> args, c10::ScalarType dtype,
              const Sizes& sizes) {
    TensorMeta meta;
    meta.dtype = dtype;
    give_geometry(meta, sizes);
    return add(name, overload, std::move(args), meta);
  }

  ValueId add(const char* name, const char* overload, std::vector<AtenArg> args, const TensorMeta& meta) {
    const ValueId id = made_.add_result(meta, static_cast<int32_t>(made_.aten_nodes.size()));
    made_.aten_nodes.push_back({find_op(name, overload), std::move(args), {id}, -1});
    return id;
  }

  ValueId difference(ValueId a, ValueId b, const Sizes& sizes) {
    return add("aten::sub", "Tensor", {a, b, c10::IValue(1)}, meta(scores_).dtype, sizes);
  }
  ValueId both(const char* name, ValueId a, ValueId b) {
    return add(name, "Tensor", {a, b}, c10::kBool, {at_.rows, at_.columns});
  }
  ValueId column(ValueId row) {
    return add("aten::unsqueeze", "", {row, c10::IValue(1)}, meta(row).dtype, {at_.rows, 1});
  }

  void write(ValueId to, ValueId from) {
    made_.aten_nodes.push_back({find_op("aten::copy_"), {to, from, c10::IValue(false)}, {to}, -1});
  }

  /// Those of the operators inside that make `wanted`.
  std::set<int32_t> makers_of(const std::vector<ValueId>& wanted) const {
    std::set<ValueId> needed(wanted.begin(), wanted.end());
    std::set<int32_t> makers;
    for (auto i = found_.inside.rbegin(); i != found_.inside.rend(); ++i) {
      const AtenNode& node = whole_.aten_nodes[*i];
      if (!needed.contains(node.results[0])) continue;
      makers.insert(*i);
      const bool shows = found_.unmasked.contains(*i);
      if (shows) needed.insert(operand(node, 1));
      if (!shows) graph::for_each_operand(node, [&](ValueId id) { needed.insert(id); });
    }
    return makers;
  }

  /// The operators of the graph around that make `wanted`, on all scores.
  void add_inside(const std::vector<ValueId>& wanted) {
    for (const int32_t i : makers_of(wanted)) {
      if (whole_.values[found_.scores].producer < i) bring_scores();
      AtenNode node = whole_.aten_nodes[i];
      if (found_.unmasked.contains(i)) {
        bring(operand(node, 1));
        map_[node.results[0]] = map_[operand(node, 1)];
        continue;
      }
      graph::for_each_operand(node, [&](ValueId id) { bring(id); });
      for (AtenArg& arg : node.args) graph::rename(arg, map_);
      for (ValueId& id : node.results) {
        map_[id] = made_.add_result(whole_.values[id].meta, static_cast<int32_t>(made_.aten_nodes.size()));
        id = map_[id];
      }
      node.torch_node = -1;
      made_.aten_nodes.push_back(std::move(node));
    }
    bring_scores();
  }

  void bring(ValueId id) {
    const graph::Value& value = whole_.values[id];
    if (map_[id] == kNoValue && value.kind == graph::ValueKind::Constant) map_[id] = made_.add_constant(value.constant);
    if (id == found_.scores) bring_scores();
  }

  void bring_scores() {
    if (map_[found_.scores] != kNoValue) return;
    const TensorMeta& meta = whole_.values[found_.scores].meta;
    map_[found_.scores] = add("magneto::from_tile", "",
                              {scores_, size_list(graph::sizes_of(meta)), size_list({at_.row, at_.column})}, meta);
  }

  ValueId tile_of(ValueId id) {
    bring(id);
    return add("magneto::tile", "",
               {map_[id], size_list({at_.batch, at_.head, at_.row, at_.column}), size_list({at_.rows, at_.columns})},
               whole_.values[id].meta.dtype, {at_.rows, at_.columns});
  }

  const graph::Graph& whole_;
  const TiledAttention& found_;
  graph::Graph made_;
  std::vector<ValueId> map_;
  Place at_;
  int32_t next_ = 0;
  ValueId position_, scores_, result_, greatest_, sum_;
};

/// The same number along a dimension, counted from the last of four.
bool is_spread(const TensorMeta& meta, size_t dim) {
  const size_t skipped = 4 - meta.sizes.size();
  if (dim < skipped) return true;
  return graph::sizes_of(meta)[dim - skipped] == 1 || graph::strides_of(meta)[dim - skipped] == 0;
}

}  // namespace

TileRegions make_tile_regions(const graph::Graph& whole, const TiledAttention& found, int32_t number) {
  TileRegions regions;
  regions.operands = found.operands;
  // Sizes that the operators name are found in what says them to the graph around.
  for (const graph::SymbolBinding& symbol : whole.symbols) {
    if (!std::ranges::count(regions.operands, symbol.value)) regions.operands.push_back(symbol.value);
  }
  const auto named = [&](const char* name, graph::Graph graph) {
    return std::make_shared<const graph::Region>(graph::Region{name + std::to_string(number), std::move(graph)});
  };
  const auto maker = [&] { return RegionMaker(whole, found, regions.operands); };
  regions.is_masked = !found.conditions.empty();
  regions.looks_up = regions.is_masked && !found.lookups.empty();
  regions.scores = named("tile_scores_", maker().scores());
  regions.live = named("tile_live_", regions.is_masked ? maker().live() : maker().nothing());
  regions.lookups = named("tile_lookups_", regions.looks_up ? maker().lookups() : maker().nothing());
  std::vector<ValueId> asked;
  if (regions.is_masked) {
    asked = found.conditions;
    if (regions.looks_up) {
      for (const int32_t i : found.lookups) {
        const auto& indices = std::get<std::vector<ValueId>>(whole.aten_nodes[i].args[1]);
        asked.insert(asked.end(), indices.begin(), indices.end());
      }
    }
  }
  for (const ValueId id : asked) {
    regions.every_batch = regions.every_batch && is_spread(whole.values[id].meta, 0);
    regions.every_head = regions.every_head && is_spread(whole.values[id].meta, 1);
  }
  return regions;
}

}  // namespace magneto::passes
