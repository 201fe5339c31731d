// Views by strides (`as_strided`, `unfold`) as views by dimensions, which have inverses and become parts of kernels.
// Autograd makes them where a program writes to a part of a tensor (`h[:, 1:] *= 2`): it knows of the part only how it
// lies.
//
// A place in contiguous memory is a number whose digits are the indices, and its strides are what the digits are worth:
// in a [6, 8], the place 19 is (2, 3). A dimension of the view counts one of them up, in steps; digits that none counts
// stay what they are at the first element:
//
//     as_strided(%1, [6, 2], [8, 1], 3)    slice(%1, 1, 3, 5, 1)
//     as_strided(%1, [8], [1], 16)         select(%1, 0, 2)
//
// Where the tensor's own dimensions don't do (windows, rows that are read as one), other digits may: those that the
// view's strides are worth.
#include <algorithm>
#include <numeric>
#include <optional>

#include "graph/aliases.h"
#include "graph/text.h"
#include "passes/effects.h"
#include "passes/passes.h"
#include "passes/rewriter.h"
#include "passes/view_meta.h"

namespace magneto::passes {
namespace {

using graph::AtenArg;
using graph::AtenNode;
using graph::Graph;
using graph::kNoValue;
using graph::TensorMeta;
using graph::ValueId;
using Numbers = std::vector<int64_t>;

bool is_strided(const AtenNode& node) { return node.op.operator_name().name == "aten::as_strided"; }

/// A view that has no inverse as it is.
bool has_digits(const AtenNode& node) { return is_strided(node) || node.op.operator_name().name == "aten::unfold"; }

/// What a view shows, in elements.
struct Strided {
  Numbers sizes, strides;
  int64_t offset;
};

/// A digit: how many values it has, and what it is worth.
struct Digit {
  int64_t size, worth;
};

/// What is shown of one digit: `view_dim` counts it, or (-1) it stays `start`.
struct Shown {
  int64_t view_dim = -1, start = 0, step = 1;
};

std::vector<Digit> digits_of(const Numbers& sizes) {
  std::vector<Digit> digits;
  for (const int64_t size : sizes) digits.push_back({size, 1});
  for (size_t i = digits.size(); i-- > 1;) digits[i - 1].worth = digits[i].worth * digits[i].size;
  return digits;
}

/// Those that the strides of the view are worth; nothing where one is no multiple of the next.
std::optional<std::vector<Digit>> digits_of(const Strided& view, int64_t elements) {
  Numbers worths = {elements};
  for (size_t dim = 0; dim < view.sizes.size(); ++dim) {
    if (view.sizes[dim] != 1) worths.push_back(view.strides[dim]);
  }
  std::ranges::sort(worths, std::greater<>());
  worths.push_back(1);
  worths.erase(std::ranges::unique(worths).begin(), worths.end());
  std::vector<Digit> digits;
  for (size_t i = 1; i < worths.size(); ++i) {
    if (worths[i] <= 0 || worths[i - 1] % worths[i] != 0) return std::nullopt;
    digits.push_back({worths[i - 1] / worths[i], worths[i]});
  }
  return digits;
}

/// The view by these digits; nothing if it is none.
std::optional<std::vector<Shown>> shown_by(const std::vector<Digit>& digits, const Strided& view) {
  std::vector<Shown> shown(digits.size());
  int64_t rest = view.offset;
  for (size_t i = 0; i < digits.size(); ++i) {
    shown[i].start = rest / digits[i].worth;
    rest %= digits[i].worth;
    if (shown[i].start >= digits[i].size) return std::nullopt;
  }
  if (rest != 0) return std::nullopt;
  for (size_t dim = 0; dim < view.sizes.size(); ++dim) {
    if (view.sizes[dim] == 1) continue;
    const int64_t stride = view.strides[dim];
    const auto digit = std::ranges::find_if(digits, [&](const Digit& d) { return d.size > 1 && d.worth <= stride; });
    if (digit == digits.end() || stride % digit->worth != 0) return std::nullopt;
    Shown& there = shown[digit - digits.begin()];
    const int64_t step = stride / digit->worth;
    if (there.view_dim >= 0 || there.start + (view.sizes[dim] - 1) * step >= digit->size) return std::nullopt;
    there.view_dim = static_cast<int64_t>(dim);
    there.step = step;
  }
  return shown;
}

class Indexer {
 public:
  explicit Indexer(Graph& graph) : graph_(graph), owners_(graph.values.size(), kNoValue) {}

  void run() {
    for (const ValueId id : graph_.inputs) owners_[id] = id;
    std::vector<AtenNode> old = std::move(graph_.aten_nodes);
    graph_.aten_nodes.clear();
    for (AtenNode& node : old) {
      follow(node);
      if (!has_digits(node) || !index(node)) add(std::move(node));
    }
  }

 private:
  /// Of each value whose memory it is; not of what gets other sizes or other memory on the way.
  void follow(const AtenNode& node) {
    if (graph::changes_metadata(node.op) || traits_of(node.op).is(ops::replaces_storage)) {
      const ValueId changed = owners_[std::get<ValueId>(node.args[0])];
      std::ranges::replace(owners_, changed, kNoValue);
    }
    const bool is_view = is_strided(node) || traits_of(node.op).view;
    const bool is_new = !graph::effects_of(node.op).aliases;
    for (const ValueId id : node.results) {
      if (id == kNoValue || owners_[id] != kNoValue) continue;
      if (is_view) owners_[id] = owners_[std::get<ValueId>(node.args[0])];
      if (is_new) owners_[id] = id;
    }
  }

  void add(AtenNode node) {
    for (const ValueId id : node.results) {
      graph::Value* const value = id == kNoValue ? nullptr : &graph_.values[id];
      const bool is_made = value && value->kind == graph::ValueKind::Result && !made_.contains(id);
      if (is_made) value->producer = static_cast<int32_t>(graph_.aten_nodes.size());
      if (is_made) made_.insert(id);
    }
    graph_.aten_nodes.push_back(std::move(node));
  }

  /// Nothing is said of tensors whose place in their memory is known at the run alone: inputs with an offset.
  std::optional<Strided> view_of(const AtenNode& node, ValueId owner) const {
    const TensorMeta& whole = graph_.values[owner].meta;
    const auto source = std::get<ValueId>(node.args[0]);
    for (const ValueId id : {owner, source, node.results[0]}) {
      if (graph_.values[id].meta.symbolic) return std::nullopt;
    }
    const auto is_number = [](const AtenArg& arg) { return std::holds_alternative<c10::IValue>(arg); };
    if (!std::ranges::all_of(node.args.begin() + 1, node.args.end(), is_number)) return std::nullopt;
    const TensorMeta &its = graph_.values[source].meta, &shown = graph_.values[node.results[0]].meta;
    const bool is_input = graph_.values[owner].kind != graph::ValueKind::Result;
    const bool follows_source = !is_strided(node) || constant_of(node.args[3]).isNone();
    if (is_input ? owner != source || !follows_source : whole.storage_offset != 0) return std::nullopt;
    if (whole.strides != graph::contiguous_strides(whole.sizes)) return std::nullopt;
    const Strided view{shown.sizes, shown.strides, shown.storage_offset - (is_input ? its.storage_offset : 0)};
    if (view.offset < 0 || std::ranges::find(view.sizes, 0) != view.sizes.end()) return std::nullopt;
    return view;
  }

  bool index(const AtenNode& node) {
    const ValueId owner = owners_[std::get<ValueId>(node.args[0])];
    if (owner == kNoValue || graph_.values[owner].meta.sizes.empty()) return false;
    const std::optional<Strided> view = view_of(node, owner);
    if (!view) return false;
    const Numbers sizes = graph_.values[owner].meta.sizes;
    const int64_t elements = std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
    steps_.clear();
    if (const auto shown = shown_by(digits_of(sizes), *view)) {
      return emit(node, owner, sizes, *shown, *view);
    }
    const auto digits = digits_of(*view, elements);
    if (!digits) return false;
    const auto shown = shown_by(*digits, *view);
    if (!shown) return false;
    Numbers others;
    for (const Digit& digit : *digits) others.push_back(digit.size);
    static const auto reshaped = find_op("aten::view");
    TensorMeta meta = graph_.values[owner].meta;
    step(reshaped, {c10::IValue(others)}, meta);
    return emit(node, owner, others, *shown, *view);
  }

  /// One more view, of what the last one gives.
  void step(const c10::OperatorHandle& op, std::vector<AtenArg> args, TensorMeta& of) {
    AtenNode node{op, {kNoValue}, {}, -1};
    node.args.insert(node.args.end(), args.begin(), args.end());
    of = view_metas(node, of).at(0);
    steps_.push_back({std::move(node), of});
  }

  bool emit(const AtenNode& node, ValueId owner, const Numbers& sizes, const std::vector<Shown>& shown,
            const Strided& view) {
    static const auto select = find_op("aten::select", "int"), slice = find_op("aten::slice", "Tensor"),
                      permute = find_op("aten::permute"), lies_so = find_op("aten::_reshape_alias"),
                      same = find_op("aten::view");
    TensorMeta meta = steps_.empty() ? graph_.values[owner].meta : steps_.back().meta;
    Numbers order;  // of the view's dimensions, as they lie
    for (size_t i = sizes.size(); i-- > 0;) {
      const auto [dim, start, by] = shown[i];
      const auto place = c10::IValue(static_cast<int64_t>(i));
      if (dim < 0) {
        step(select, {place, c10::IValue(start)}, meta);
        continue;
      }
      order.insert(order.begin(), dim);
      const int64_t end = start + (view.sizes[dim] - 1) * by + 1;
      const bool is_whole = start == 0 && by == 1 && end == sizes[i];
      if (!is_whole) step(slice, {place, c10::IValue(start), c10::IValue(end), c10::IValue(by)}, meta);
    }
    Numbers turned(order.size());
    std::iota(turned.begin(), turned.end(), 0);
    std::ranges::sort(turned, {}, [&](int64_t i) { return order[i]; });
    if (!std::ranges::is_sorted(turned)) step(permute, {c10::IValue(turned)}, meta);
    // Dimensions of size one have strides, too.
    if (std::ranges::find(view.sizes, 1) != view.sizes.end()) {
      step(lies_so, {c10::IValue(view.sizes), c10::IValue(view.strides)}, meta);
    }
    if (!lies_alike(meta, graph_.values[node.results[0]].meta)) return false;
    if (steps_.empty()) step(same, {c10::IValue(view.sizes)}, meta);
    ValueId source = owner;
    for (auto& [next, its] : steps_) {
      const bool is_last = &next == &steps_.back().node;
      next.args[0] = source;
      next.torch_node = node.torch_node;
      source = is_last ? node.results[0] : graph_.add_result(its, -1);
      if (!is_last) owners_.push_back(owner);
      next.results = {source};
      add(std::move(next));
    }
    return true;
  }

  struct Step {
    AtenNode node;
    TensorMeta meta;
  };

  Graph& graph_;
  std::vector<ValueId> owners_;  // kNoValue: not known
  std::set<ValueId> made_;
  std::vector<Step> steps_;
};

}  // namespace

void index_strided_views(Graph& graph) {
  if (std::ranges::any_of(graph.aten_nodes, has_digits)) Indexer(graph).run();
}

}  // namespace magneto::passes
