// Attention by tiles: where it is found. Scores are one product, their softmax is multiplied with values, and what is
// done to a score in between depends on that score, its place, and tensors from outside: so it can be done on any tile.
#include "passes/tiles.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "graph/aliases.h"
#include "graph/symbols.h"
#include "graph/text.h"
#include "ops/operator.h"
#include "passes/effects.h"
#include "passes/rewriter.h"

namespace magneto::passes {

using graph::AtenNode;
using graph::kNoValue;
using graph::TensorMeta;
using graph::ValueId;
using graph::ValueKind;
using shapes::Sizes;

namespace {

/// Fewer scores a head than this are written and read: they fit in the caches. (Chosen, not measured.)
constexpr int64_t kLeastScores = 96 * 1024;
constexpr int64_t kLeastQueries = 64;

bool is_called(const AtenNode& node, const char* name) { return node.op.operator_name().name == name; }

/// Operators that are element by element, with any result's element computed by itself.
bool has_pointwise_rule(const AtenNode& node) {
  static const std::unordered_set<c10::OperatorName> names = {
#define ROW_lowering_pointwise(op, ...) ops::parsed(op),
#include "ops/rows.def"
  };
  return names.contains(node.op.operator_name());
}

Sizes sizes(const TensorMeta& meta) { return graph::sizes_of(meta); }

int64_t count(const TensorMeta& meta) {
  int64_t product = 1;
  for (const int64_t size : meta.sizes) product *= size;
  return product;
}

bool is_working_dtype(c10::ScalarType dtype) { return dtype == c10::kFloat || dtype == c10::kDouble; }

bool is_last(const graph::AtenArg& arg) {
  const auto* dim = std::get_if<c10::IValue>(&arg);
  if (!dim) return false;
  if (dim->isInt()) return dim->toInt() == -1 || dim->toInt() == 3;
  return dim->isIntList() && dim->toIntVector().size() == 1 &&
         (dim->toIntVector()[0] == -1 || dim->toIntVector()[0] == 3);
}

}  // namespace

ValueId operand(const AtenNode& node, size_t i) {
  const auto* id = i < node.args.size() ? std::get_if<ValueId>(&node.args[i]) : nullptr;
  return id ? *id : kNoValue;
}

TileFinder::TileFinder(const Functional& functional)
    : graph_(functional.graph), readers_(graph_.values.size()), leaves_(graph_.values.size(), false) {
  for (size_t i = 0; i < graph_.aten_nodes.size(); ++i) {
    graph::for_each_operand(graph_.aten_nodes[i], [&](ValueId id) { readers_[id].push_back(static_cast<int32_t>(i)); });
  }
  for (const ValueId id : graph_.outputs) leaves_[id] = true;
  for (const auto& write : functional.writes) leaves_[write.value] = true;
}

const AtenNode* TileFinder::producer(ValueId id) const {
  const int32_t producer = id == kNoValue ? -1 : graph_.values[id].producer;
  return producer < 0 ? nullptr : &graph_.aten_nodes[producer];
}

bool TileFinder::is_view(const AtenNode& node) const { return traits_of(node.op).view; }

/// Its result has the operand's elements in the same order.
bool TileFinder::looks_through(const AtenNode& node) const {
  static const std::unordered_set<std::string> names = {"aten::view", "aten::_unsafe_view", "aten::_reshape_alias",
                                                        "aten::expand"};
  return names.contains(node.op.operator_name().name) && operand(node, 0) != kNoValue &&
         count(graph_.values[operand(node, 0)].meta) == count(graph_.values[node.results[0]].meta);
}

/// [batch, heads, rows, columns] that is seen as [batch * heads, rows, columns], which a product reads.
ValueId TileFinder::with_heads(ValueId id) const {
  const Sizes flat = sizes(graph_.values[id].meta);
  while (true) {
    const TensorMeta& meta = graph_.values[id].meta;
    if (meta.sizes.size() == 4) {
      const Sizes apart = sizes(meta);
      const bool alike = apart[0] * apart[1] == flat[0] && apart[2] == flat[1] && apart[3] == flat[2];
      return alike ? id : kNoValue;
    }
    const AtenNode* node = producer(id);
    if (!node || !looks_through(*node)) return kNoValue;
    id = operand(*node, 0);
  }
}

/// What was repeated for each query of a group, or became another float: what it was made of.
ValueId TileFinder::without_copies(ValueId id) const {
  while (true) {
    const AtenNode* node = producer(id);
    if (!node) return id;
    const ValueId from = operand(*node, 0);
    const TensorMeta &meta = graph_.values[id].meta, &before = from == kNoValue ? meta : graph_.values[from].meta;
    if (is_called(*node, "aten::expand") && sizes(meta) == sizes(before)) {
      id = from;
      continue;
    }
    if (is_called(*node, "aten::_to_copy") && c10::isFloatingType(before.dtype) && is_working_dtype(meta.dtype)) {
      id = from;
      continue;
    }
    // view(clone(expand(unsqueeze(x, 2))))
    const AtenNode* copy = is_called(*node, "aten::view") ? producer(from) : nullptr;
    const AtenNode* spread = copy && is_called(*copy, "aten::clone") ? producer(operand(*copy, 0)) : nullptr;
    const AtenNode* longer = spread && is_called(*spread, "aten::expand") ? producer(operand(*spread, 0)) : nullptr;
    if (!longer || !is_called(*longer, "aten::unsqueeze") || operand(*longer, 0) == kNoValue) return id;
    const ValueId base = operand(*longer, 0);
    const Sizes own = sizes(graph_.values[base].meta), wide = sizes(graph_.values[spread->results[0]].meta);
    const Sizes whole = sizes(meta);
    const bool repeats = own.size() == 4 && wide.size() == 5 && whole.size() == 4 &&
                         sizes(graph_.values[longer->results[0]].meta)[2] == 1 && wide[0] == own[0] &&
                         wide[1] == own[1] && wide[3] == own[2] && wide[4] == own[3] && whole[0] == own[0] &&
                         whole[1] == wide[1] * wide[2] && whole[2] == own[2] && whole[3] == own[3];
    if (!repeats) return id;
    id = base;
  }
}

bool TileFinder::is_minus_infinity(ValueId id) const {
  const graph::Value& value = graph_.values[id];
  const double infinity = std::numeric_limits<double>::infinity();
  if (value.kind == ValueKind::Constant) {
    return value.constant.numel() == 1 && c10::isFloatingType(value.meta.dtype) &&
           value.constant.item().toDouble() == -infinity;
  }
  const AtenNode* node = producer(id);
  if (!node) return false;
  if (is_view(*node)) return is_minus_infinity(operand(*node, 0));
  const size_t at = is_called(*node, "aten::full") || is_called(*node, "aten::full_like") ? 1 : 0;
  if (at == 0 && !is_called(*node, "aten::scalar_tensor")) return false;
  const auto* number = std::get_if<c10::IValue>(&node->args[at]);
  return number && number->isDouble() && number->toDouble() == -infinity && c10::isFloatingType(value.meta.dtype);
}

bool TileFinder::is_true(ValueId id) const {
  const AtenNode* node = producer(id);
  while (node && is_view(*node)) node = producer(operand(*node, 0));
  return node && (is_called(*node, "aten::new_ones") || is_called(*node, "aten::ones"));
}

bool TileFinder::is_inside(const AtenNode& node, int64_t large) const {
  if (node.results.size() != 1 || node.results[0] == kNoValue || graph::has_regions(node)) return false;
  if (is_view(node)) return true;
  const bool is_large = count(graph_.values[node.results[0]].meta) >= large;
  if (is_large && is_called(node, "aten::index")) {
    const auto* indices = std::get_if<std::vector<ValueId>>(&node.args[1]);
    return indices && indices->size() == graph_.values[operand(node, 0)].meta.sizes.size() &&
           std::ranges::none_of(*indices, [&](ValueId id) {
             return id == kNoValue ||
                    (graph_.values[id].meta.dtype != c10::kLong && graph_.values[id].meta.dtype != c10::kInt);
           });
  }
  bool reads = false;
  graph::for_each_operand(node, [&](ValueId) { reads = true; });
  // What is small is computed once, for all tiles, unless it is a number of its place.
  if (!is_large && reads) return false;
  return has_pointwise_rule(node) || is_called(node, "aten::arange");
}

/// The operators that make the softmax's operand, down to what is computed outside.
bool TileFinder::find_inside(TiledAttention& found) const {
  const TensorMeta& whole = graph_.values[found.masked].meta;
  const int64_t large = whole.sizes[2] * whole.sizes[3];
  // Nothing that is left outside may need the scores.
  std::vector<bool> of_scores(graph_.values.size(), false);
  of_scores[found.scores] = true;
  for (const AtenNode& node : graph_.aten_nodes) {
    bool any = false;
    graph::for_each_operand(node, [&](ValueId id) { any = any || of_scores[id]; });
    for (const ValueId id : node.results) {
      if (id != kNoValue && any) of_scores[id] = true;
    }
  }
  std::vector<ValueId> open = {found.masked};
  std::vector<bool> seen(graph_.values.size(), false);
  bool reaches = false;
  while (!open.empty()) {
    const ValueId id = open.back();
    open.pop_back();
    if (seen[id] || graph_.values[id].kind == ValueKind::Constant) continue;
    seen[id] = true;
    if (id == found.scores) {
      reaches = true;
      continue;
    }
    const AtenNode* node = producer(id);
    // A view of what stays outside stays there as well, unless it is one of scores.
    const AtenNode* base = node;
    while (base && is_view(*base) && !of_scores[id]) base = producer(operand(*base, 0));
    const bool inside = base && is_inside(*node, large) && is_inside(*base, large);
    if (!inside) {
      if (of_scores[id] || !graph_.values[id].meta.device.is_cpu()) return false;
      found.operands.push_back(id);
      continue;
    }
    found.inside.insert(graph_.values[id].producer);
    if (found.unmasked.contains(graph_.values[id].producer)) {
      open.push_back(operand(*node, 1));
      continue;
    }
    if (is_called(*node, "aten::index")) found.lookups.push_back(graph_.values[id].producer);
    graph::for_each_operand(*node, [&](ValueId each) { open.push_back(each); });
  }
  std::ranges::sort(found.operands);
  std::ranges::sort(found.lookups);
  return reaches;
}

/// The product whose scores the softmax is of: the nearest one of the right sizes.
bool TileFinder::find_scores(TiledAttention& found) const {
  const Sizes whole = sizes(graph_.values[found.masked].meta);
  std::vector<ValueId> open = {found.masked};
  std::set<ValueId> seen, products;
  while (!open.empty()) {
    const ValueId id = open.back();
    open.pop_back();
    const AtenNode* node = producer(id);
    if (!node || !seen.insert(id).second) continue;
    const ValueId flat = looks_through(*node) ? operand(*node, 0) : kNoValue;
    const AtenNode* product = producer(flat);
    if (product && is_called(*product, "aten::bmm") && sizes(graph_.values[id].meta) == whole &&
        with_heads(operand(*product, 0)) != kNoValue) {
      if (readers_[flat].size() == 1) products.insert(id);
      continue;
    }
    const bool large = count(graph_.values[id].meta) >= graph_.values[found.masked].meta.sizes[2];
    if (large) graph::for_each_operand(*node, [&](ValueId each) { open.push_back(each); });
  }
  if (products.size() != 1) return false;
  found.scores = *products.begin();
  const AtenNode& product = *producer(operand(*producer(found.scores), 0));
  const ValueId query = with_heads(operand(product, 0)), turned = with_heads(operand(product, 1));
  // The key, whose last two dimensions have changed places.
  ValueId key = turned;
  while (key != kNoValue && producer(key) && looks_through(*producer(key))) key = operand(*producer(key), 0);
  const AtenNode* turn = producer(key);
  if (!turn || !is_called(*turn, "aten::transpose") || query == kNoValue) return false;
  key = operand(*turn, 0);
  const Sizes q = sizes(graph_.values[query].meta), k = sizes(graph_.values[key].meta);
  if (k.size() != 4 || k[0] != whole[0] || k[1] != whole[1] || k[2] != whole[3] || k[3] != q[3]) return false;
  if (q[0] != whole[0] || q[1] != whole[1] || q[2] != whole[2]) return false;
  found.query = without_copies(query);
  found.key = without_copies(key);
  return true;
}

void TileFinder::find_conditions(TiledAttention& found) const {
  ValueId id = found.masked;
  const Sizes whole = sizes(graph_.values[id].meta);
  for (const AtenNode* node = producer(id); node && is_called(*node, "aten::where"); node = producer(id)) {
    const ValueId condition = operand(*node, 0), kept = operand(*node, 1), other = operand(*node, 2);
    if (condition == kNoValue || kept == kNoValue || other == kNoValue) return;
    if (!is_minus_infinity(other) || sizes(graph_.values[kept].meta) != whole) return;
    if (is_true(condition)) {
      found.unmasked.insert(graph_.values[id].producer);
    } else {
      found.conditions.push_back(condition);
    }
    id = kept;
  }
}

/// Besides the softmax, the scores' logarithm of sums, their greatest, and whether all are minus infinity are known.
bool TileFinder::find_readers(TiledAttention& found) const {
  for (const int32_t i : readers_[found.masked]) {
    const AtenNode& node = graph_.aten_nodes[i];
    if (is_called(node, "aten::_safe_softmax")) continue;
    if (is_called(node, "aten::logsumexp") && found.logsumexp < 0 && is_last(node.args[1]) &&
        std::get<c10::IValue>(node.args[2]) == c10::IValue(false)) {
      found.logsumexp = i;
      continue;
    }
    if (is_called(node, "aten::max") && node.results.size() == 2 && node.results[1] == kNoValue && found.maximum < 0 &&
        is_last(node.args[1]) && std::get<c10::IValue>(node.args[2]) == c10::IValue(false)) {
      found.maximum = i;
      continue;
    }
    const bool compares = is_called(node, "aten::eq") && operand(node, 1) == kNoValue &&
                          std::get_if<c10::IValue>(&node.args[1]) && !leaves_[node.results[0]] &&
                          std::get<c10::IValue>(node.args[1]).isDouble() &&
                          std::get<c10::IValue>(node.args[1]).toDouble() == -std::numeric_limits<double>::infinity();
    if (!compares || readers_[node.results[0]].size() != 1 || found.all_masked >= 0) return false;
    const int32_t all = readers_[node.results[0]][0];
    const AtenNode& reader = graph_.aten_nodes[all];
    if (!is_called(reader, "aten::all") || reader.args.size() != 3 || !is_last(reader.args[1])) return false;
    if (std::get<c10::IValue>(reader.args[2]) != c10::IValue(false)) return false;
    found.all_masked = all;
  }
  return true;
}

bool TileFinder::pays(const TiledAttention& found) const {
  const std::vector<int64_t>& whole = graph_.values[found.masked].meta.sizes;
  return whole[2] >= kLeastQueries && whole[2] * whole[3] >= kLeastScores;
}

std::optional<TiledAttention> TileFinder::find(int32_t index) const {
  const AtenNode& node = graph_.aten_nodes[index];
  if (!is_called(node, "aten::bmm")) return std::nullopt;
  TiledAttention found;
  found.product = index;
  const ValueId weights = with_heads(operand(node, 0)), value = with_heads(operand(node, 1));
  if (weights == kNoValue || value == kNoValue) return std::nullopt;
  // From the softmax on nobody else reads.
  ValueId id = operand(node, 0);
  const AtenNode* softmax = nullptr;
  while (!softmax) {
    const AtenNode* maker = producer(id);
    if (!maker || leaves_[id] || readers_[id].size() != 1) return std::nullopt;
    if (is_called(*maker, "aten::_safe_softmax")) {
      softmax = maker;
    } else if (!looks_through(*maker) && !is_called(*maker, "aten::_to_copy")) {
      return std::nullopt;
    }
    id = operand(*maker, 0);
  }
  found.masked = id;
  const TensorMeta& masked = graph_.values[found.masked].meta;
  if (masked.sizes.size() != 4 || !is_working_dtype(masked.dtype) || leaves_[found.masked]) return std::nullopt;
  if (!is_last(softmax->args[1]) || !std::get<c10::IValue>(softmax->args[2]).isNone()) return std::nullopt;
  if (!pays(found) || !find_scores(found) || graph_.values[found.scores].meta.dtype != masked.dtype)
    return std::nullopt;
  if (leaves_[found.scores] || leaves_[operand(*producer(found.scores), 0)]) return std::nullopt;
  found.value = without_copies(value);
  find_conditions(found);
  if (!find_readers(found) || !find_inside(found)) return std::nullopt;
  // The operator is added where the first of what it stands for was.
  const auto is_made = [&](ValueId id) { return graph_.values[id].producer < found.first(); };
  if (!is_made(found.query) || !is_made(found.key) || !is_made(found.value)) return std::nullopt;
  return std::ranges::all_of(found.operands, is_made) ? std::optional(found) : std::nullopt;
}

int32_t TiledAttention::first() const {
  int32_t place = product;
  for (const int32_t other : {logsumexp, all_masked, maximum}) {
    if (other >= 0) place = std::min(place, other);
  }
  return place;
}

// -- writing
// -----------------------------------------------------------------------------------------------------------

namespace {

class Writer {
 public:
  Writer(Rewriter& out, int32_t number) : out_(out), number_(number) {}

  /// Adds the operator where the last product stood: all that it reads is made by then.
  void write(const TiledAttention& found) {
    const graph::Graph& old = out_.old();
    const AtenNode& product = old.aten_nodes[found.product];
    torch_node_ = product.torch_node;
    const TensorMeta& masked = old.values[found.masked].meta;
    const ValueId query = converted(found.query, masked.dtype), key = converted(found.key, masked.dtype),
                  value = converted(found.value, masked.dtype);
    const TileRegions regions = make_tile_regions(old, found, number_);
    std::vector<ValueId> operands;
    for (const ValueId id : regions.operands) operands.push_back(out_.map(id));
    const TensorMeta& result = old.values[product.results[0]].meta;
    Sizes whole = sizes(masked);
    whole[3] = sizes(result)[2];
    const TensorMeta out = typed(whole, result.dtype);
    whole.pop_back();
    const TensorMeta row = typed(whole, masked.dtype);
    const std::vector<ValueId> made =
        out_.add(find_op("magneto::tiled_attention"),
                 {query, key, value, regions.scores, regions.live, regions.lookups, c10::IValue(regions.is_masked),
                  c10::IValue(regions.looks_up), c10::IValue(regions.every_batch), c10::IValue(regions.every_head),
                  c10::IValue(static_cast<int64_t>(result.dtype)), std::move(operands)},
                 {&out, &row, &row}, torch_node_);
    set_product(product, made[0]);
    made_ = made;
  }

  /// An operator that read the scores too, where it stood.
  void write_reader(const TiledAttention& found, int32_t index) {
    const AtenNode& node = out_.old().aten_nodes[index];
    if (index == found.logsumexp) return out_.set(node.results[0], made_[1]);
    if (index == found.maximum) return out_.set(node.results[0], made_[2]);
    const TensorMeta meta = out_.old().values[node.results[0]].meta;
    const double infinity = std::numeric_limits<double>::infinity();
    out_.set(node.results[0],
             out_.add(find_op("aten::eq", "Scalar"), {made_[2], c10::IValue(-infinity)}, {&meta}, node.torch_node)[0]);
  }

 private:
  static TensorMeta typed(const Sizes& sizes, c10::ScalarType dtype) {
    TensorMeta meta;
    meta.dtype = dtype;
    give_geometry(meta, sizes);
    return meta;
  }

  ValueId converted(ValueId id, c10::ScalarType dtype) {
    const TensorMeta& meta = out_.old().values[id].meta;
    const ValueId now = out_.map(id);
    if (meta.dtype == dtype) return now;
    const TensorMeta wide = typed(sizes(meta), dtype);
    return out_.add(find_op("aten::_to_copy"),
                    {now, c10::IValue(static_cast<int64_t>(dtype)), c10::IValue(), c10::IValue(), c10::IValue(),
                     c10::IValue(false), c10::IValue()},
                    {&wide}, torch_node_)[0];
  }

  void set_product(const AtenNode& product, ValueId made) {
    const TensorMeta result = out_.old().values[product.results[0]].meta;
    const graph::AtenArg shape = size_list(sizes(result));
    out_.set(product.results[0], out_.add(find_op("aten::view"), {made, shape}, {&result}, torch_node_)[0]);
  }

  Rewriter& out_;
  int32_t number_, torch_node_ = -1;
  std::vector<ValueId> made_;
};

}  // namespace

namespace {

/// Operators that the regions do, where nobody else needs them: also those that may raise.
std::set<int32_t> done_inside(const Functional& functional, const std::vector<TiledAttention>& all) {
  const graph::Graph& graph = functional.graph;
  std::set<int32_t> inside, done;
  for (const TiledAttention& found : all) {
    inside.insert(found.inside.begin(), found.inside.end());
    for (const int32_t i : {found.product, found.logsumexp, found.all_masked, found.maximum}) done.insert(i);
  }
  std::vector<bool> needed(graph.values.size(), false);
  for (const ValueId id : graph.outputs) needed[id] = true;
  for (const auto& write : functional.writes) needed[write.value] = true;
  for (const graph::SymbolBinding& symbol : graph.symbols) needed[symbol.value] = true;
  for (const TiledAttention& found : all) {
    for (const ValueId id : {found.query, found.key, found.value}) needed[id] = true;
    for (const ValueId id : found.operands) needed[id] = true;
  }
  for (auto i = static_cast<int32_t>(graph.aten_nodes.size()); i-- > 0;) {
    const AtenNode& node = graph.aten_nodes[i];
    const bool is_needed = std::ranges::any_of(node.results, [&](ValueId id) { return id != kNoValue && needed[id]; });
    const ops::Operator& op = ops::operator_of(node.op);
    const bool stays = op.random || op.effect || !op.is(ops::never_raises);
    const bool idle = !is_needed && (inside.contains(i) || !stays);
    if (idle) done.insert(i);
    if (done.contains(i)) continue;
    graph::for_each_operand(node, [&](ValueId id) { needed[id] = true; });
  }
  return done;
}

}  // namespace

std::optional<Functional> tile_attention(const Functional& functional) {
  const TileFinder finder(functional);
  std::vector<TiledAttention> all;
  for (size_t i = 0; i < functional.graph.aten_nodes.size(); ++i) {
    if (auto found = finder.find(static_cast<int32_t>(i))) all.push_back(std::move(*found));
  }
  if (all.empty()) return std::nullopt;
  const std::set<int32_t> idle = done_inside(functional, all);
  Functional tiled = functional;
  rewrite(tiled, [&](Rewriter& out) {
    std::vector<Writer> writers;
    for (size_t i = 0; i < all.size(); ++i) writers.emplace_back(out, static_cast<int32_t>(i));
    for (int32_t i = 0; i < static_cast<int32_t>(out.old().aten_nodes.size()); ++i) {
      bool done = false;
      for (size_t k = 0; k < all.size(); ++k) {
        if (all[k].first() == i) writers[k].write(all[k]);
        if (i == all[k].product) done = true;
        if (i == all[k].logsumexp || i == all[k].all_masked || i == all[k].maximum) {
          writers[k].write_reader(all[k], i);
          done = true;
        }
      }
      if (!done && !idle.contains(i)) out.copy(out.old().aten_nodes[i]);
    }
  });
  eliminate_dead(tiled);
  return tiled;
}

}  // namespace magneto::passes
