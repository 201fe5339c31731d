// Gradients of slices that are added up, as one concatenation.
//
// A loop that reads `x[:, t]` for each t has as many gradients for x, each zero but in its slice, and autograd adds
// them:
//
//     add(add(select_backward(%1, [2, 3], 1, 0), select_backward(%2, [2, 3], 1, 1)), select_backward(%3, [2, 3], 1, 2))
//
// Of n slices each element of x is added up n times; put side by side, once. Zero is added to each piece all the same,
// as the sum does: negative zeros become positive ones.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "graph/aliases.h"
#include "graph/symbols.h"
#include "passes/passes.h"
#include "passes/rewriter.h"
#include "passes/view_meta.h"

namespace magneto::passes {
namespace {

using graph::AtenNode;
using graph::kNoValue;
using graph::TensorMeta;
using graph::ValueId;

/// Fewer are left to the kernel that adds them: two halves, say, of a rotary embedding.
constexpr size_t kFewestSlices = 4;

/// Where the gradient of a slice is not zero.
struct Slice {
  int64_t dim, start, end;
  bool is_select;
  ValueId gradient;
};

/// A sum of tensors, by the operator that computes it.
struct Sum {
  std::vector<ValueId> terms;  // in the order of adding
  int64_t dim = 0, size = 0;
  /// Of the terms that are to be put side by side, by start and end.
  std::map<std::pair<int64_t, int64_t>, std::vector<Slice>> slices;
  std::set<ValueId> placed;  // these terms
};

class Finder {
 public:
  explicit Finder(const Functional& functional) : graph_(functional.graph), uses_(graph_.values.size(), 0) {
    for (const AtenNode& node : graph_.aten_nodes) graph::for_each_operand(node, [&](ValueId id) { ++uses_[id]; });
    for (const ValueId id : graph_.outputs) ++uses_[id];
    for (const auto& write : functional.writes) ++uses_[write.value];
    for (const auto& bump : functional.bumps) ++uses_[bump.value];
    for (const graph::SymbolBinding& symbol : graph_.symbols) ++uses_[symbol.value];
  }

  /// Sums with enough slices, by node; `dropped`: nodes that are part of one.
  std::map<size_t, Sum> run(std::vector<bool>& dropped) {
    std::map<size_t, Sum> found;
    std::vector<bool> inner(graph_.aten_nodes.size(), false);
    for (size_t i = graph_.aten_nodes.size(); i-- > 0;) {
      if (inner[i] || !is_sum(i)) continue;
      Sum sum;
      std::vector<size_t> parts;
      collect(i, sum, inner, parts);
      if (!choose(sum, meta(graph_.aten_nodes[i].results[0]))) continue;
      for (const size_t part : parts) dropped[part] = true;
      for (const ValueId id : sum.placed) dropped[static_cast<size_t>(graph_.values[id].producer)] = true;
      found.emplace(i, std::move(sum));
    }
    return found;
  }

 private:
  const TensorMeta& meta(ValueId id) const { return graph_.values[id].meta; }

  /// Sizes and dtype are those of both operands: nothing is spread or converted.
  bool is_sum(size_t i) const {
    const AtenNode& node = graph_.aten_nodes[i];
    if (node.op.operator_name().name != "aten::add" || node.op.operator_name().overload_name != "Tensor") return false;
    const auto *a = std::get_if<ValueId>(&node.args[0]), *b = std::get_if<ValueId>(&node.args[1]);
    if (!a || !b || *a == *b || !is_one(node.args[2])) return false;
    const TensorMeta& sum = meta(node.results[0]);
    if (!c10::isFloatingType(sum.dtype) || !sum.device.is_cpu()) return false;
    return std::ranges::all_of(std::array{*a, *b}, [&](ValueId id) {
      return meta(id).dtype == sum.dtype && graph::sizes_of(meta(id)) == graph::sizes_of(sum);
    });
  }

  /// The terms of the sum at `root`, through sums that nothing else reads (`parts`).
  void collect(size_t root, Sum& sum, std::vector<bool>& inner, std::vector<size_t>& parts) const {
    std::vector<ValueId> open = {graph_.aten_nodes[root].results[0]};
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      const int32_t producer = graph_.values[id].producer;
      const auto node = static_cast<size_t>(producer);
      if (producer < 0 || (node != root && uses_[id] != 1) || !is_sum(node)) {
        sum.terms.push_back(id);
        continue;
      }
      if (node != root) {
        inner[node] = true;
        parts.push_back(node);
      }
      open.push_back(std::get<ValueId>(graph_.aten_nodes[node].args[1]));
      open.push_back(std::get<ValueId>(graph_.aten_nodes[node].args[0]));
    }
  }

  /// Which of the terms lie side by side: of slices over one dimension, the most.
  bool choose(Sum& sum, const TensorMeta& result) const {
    std::map<int64_t, std::vector<std::pair<ValueId, Slice>>> by_dim;
    for (const ValueId term : sum.terms) {
      if (const auto slice = slice_of(term)) by_dim[slice->dim].emplace_back(term, *slice);
    }
    for (const auto& [dim, slices] : by_dim) {
      decltype(sum.slices) places;
      for (const auto& [term, slice] : slices) places[{slice.start, slice.end}].push_back(slice);
      if (places.size() < kFewestSlices || places.size() < sum.slices.size() || overlap(places)) continue;
      const int64_t size = graph::sizes_of(result)[dim].number();
      if (result.symbolic && !covers(places, size)) continue;  // zeros between would need sizes
      sum.dim = dim;
      sum.size = size;
      sum.slices = std::move(places);
      sum.placed.clear();
      for (const auto& [term, slice] : slices) sum.placed.insert(term);
    }
    return !sum.slices.empty();
  }

  static bool overlap(const decltype(Sum::slices)& places) {
    int64_t end = 0;
    for (const auto& [place, slices] : places) {
      if (place.first < end) return true;
      end = place.second;
    }
    return false;
  }

  static bool covers(const decltype(Sum::slices)& places, int64_t size) {
    int64_t covered = 0;
    for (const auto& [place, slices] : places) covered += place.second - place.first;
    return covered == size;
  }

  std::optional<Slice> slice_of(ValueId id) const {
    const int32_t producer = graph_.values[id].producer;
    if (producer < 0 || uses_[id] != 1) return std::nullopt;
    const AtenNode& node = graph_.aten_nodes[producer];
    const std::string& name = node.op.operator_name().name;
    const bool is_select = name == "aten::select_backward";
    if (!is_select && name != "aten::slice_backward") return std::nullopt;
    std::vector<int64_t> numbers;  // dim, index; or dim, start, end, step
    for (size_t i = 2; i < node.args.size(); ++i) {
      const auto* number = std::get_if<c10::IValue>(&node.args[i]);
      if (!number || !number->isInt()) return std::nullopt;
      numbers.push_back(number->toInt());
    }
    const shapes::Sizes sizes = graph::sizes_of(meta(id));
    const auto rank = static_cast<int64_t>(sizes.size());
    const int64_t dim = numbers[0] < 0 ? numbers[0] + rank : numbers[0];
    if (!sizes[dim].is_static()) return std::nullopt;
    const int64_t size = sizes[dim].number();
    const auto within = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
    const int64_t start = within(numbers[1]), end = is_select ? start + 1 : within(numbers[2]);
    if ((!is_select && numbers[3] != 1) || start >= end) return std::nullopt;
    return Slice{dim, start, end, is_select, std::get<ValueId>(node.args[0])};
  }

  const graph::Graph& graph_;
  std::vector<int32_t> uses_;
};

/// Puts a sum down in the graph that grows.
class Placer {
 public:
  Placer(Rewriter& out, const Sum& sum, const AtenNode& node)
      : out_(out), sum_(sum), node_(node), result_(out.old().values[node.results[0]].meta) {}

  void run() {
    std::vector<ValueId> pieces;
    int64_t at = 0;
    for (const auto& [place, slices] : sum_.slices) {
      if (place.first > at) pieces.push_back(zeros(place.first - at));
      pieces.push_back(piece(slices));
      at = place.second;
    }
    if (at < sum_.size) pieces.push_back(zeros(sum_.size - at));
    ValueId total = add(find_op("aten::cat"), {pieces, c10::IValue(sum_.dim)}, row_major(result_));
    for (const ValueId term : sum_.terms) {
      if (!sum_.placed.contains(term)) total = plus(total, out_.map(term), result_);
    }
    out_.set(node_.results[0], total);
  }

 private:
  ValueId add(const c10::OperatorHandle& op, std::vector<graph::AtenArg> args, const TensorMeta& meta) {
    return out_.add(op, std::move(args), {&meta}, node_.torch_node)[0];
  }
  ValueId plus(ValueId a, ValueId b, const TensorMeta& meta) {
    return add(find_op("aten::add", "Tensor"), {a, b, c10::IValue(1)}, meta);
  }

  /// The gradients of one slice, added up, with all dimensions of what it is a slice of.
  ValueId piece(const std::vector<Slice>& slices) {
    ValueId total = kNoValue;
    for (const Slice& slice : slices) {
      ValueId gradient = out_.map(slice.gradient);
      if (slice.is_select) gradient = unsqueeze(gradient);
      if (total != kNoValue) gradient = plus(total, gradient, out_.graph().values[total].meta);
      total = gradient;
    }
    const TensorMeta meta = row_major(out_.graph().values[total].meta);
    return add(find_op("aten::add", "Scalar"), {total, c10::IValue(0), c10::IValue(1)}, meta);
  }

  ValueId unsqueeze(ValueId id) {
    TensorMeta meta = out_.graph().values[id].meta;
    const auto dim = static_cast<size_t>(sum_.dim);
    const auto insert = [&](auto& sizes, auto& strides) {
      using Number = std::remove_reference_t<decltype(sizes[0])>;
      const Number stride = dim < sizes.size() ? sizes[dim] * strides[dim] : Number(1);
      sizes.insert(sizes.begin() + sum_.dim, Number(1));
      strides.insert(strides.begin() + sum_.dim, stride);
    };
    insert(meta.sizes, meta.strides);
    if (meta.symbolic) insert(meta.symbolic->sizes, meta.symbolic->strides);
    return add(find_op("aten::unsqueeze"), {id, c10::IValue(sum_.dim)}, meta);
  }

  ValueId zeros(int64_t length) {
    TensorMeta meta = result_;
    meta.sizes[sum_.dim] = length;
    meta = row_major(std::move(meta));
    const c10::IValue none;
    return add(find_op("aten::full"),
               {c10::IValue(meta.sizes), c10::IValue(0), c10::IValue(static_cast<int64_t>(meta.dtype)), none,
                c10::IValue(meta.device), none},
               meta);
  }

  Rewriter& out_;
  const Sum& sum_;
  const AtenNode& node_;
  const TensorMeta result_;
};

}  // namespace

void place_slices(Functional& functional) {
  // The gradient of a slice of a slice is one only after the outer ones have been added up.
  for (int round = 0; round < 4; ++round) {
    std::vector<bool> dropped(functional.graph.aten_nodes.size(), false);
    const std::map<size_t, Sum> sums = Finder(functional).run(dropped);
    if (sums.empty()) return;
    rewrite(functional, [&](Rewriter& out) {
      for (size_t i = 0; i < out.old().aten_nodes.size(); ++i) {
        const AtenNode& node = out.old().aten_nodes[i];
        if (const auto sum = sums.find(i); sum != sums.end()) {
          Placer(out, sum->second, node).run();
        } else if (!dropped[i]) {
          out.copy(node);
        }
      }
    });
  }
}

}  // namespace magneto::passes
