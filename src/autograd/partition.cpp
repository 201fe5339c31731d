#include "autograd/partition.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "autograd/min_cut.h"
#include "graph/aliases.h"
#include "graph/kept_casts.h"
#include "passes/effects.h"

namespace magneto::autograd {

namespace {

using graph::AtenNode;
using graph::Graph;
using graph::kNoValue;
using graph::ValueId;

/// Looks at edges that the search for one partition may take, over all of its cuts.
constexpr size_t kMostLooks = 5'000'000;
/// Of the price of a saved byte of memory, in bytes of traffic: above it nothing changes any more.
constexpr double kHighestPrice = 1e5;
/// No operator's cost is above it, so that all of a graph's together stay below infinity.
constexpr double kMostCost = 1e13;

class Partitioner {
 public:
  Partitioner(const Graph& joint, const JointRange& range, const std::vector<ValueId>& reads, const PartitionWay& way)
      : joint_(joint), range_(range), reads_(reads), way_(way), aliases_(joint) {
    find_regions();
    find_writes();
    find_repeatable();
    find_materialised();
    find_eager();
  }

  Partition run() {
    Partition made = choose();
    if (looks_left_ == 0) made.departures.insert(Departure::SearchGivenUp);
    if (static_cast<double>(made.bytes) > wanted_bytes_) made.departures.insert(Departure::BudgetNotKept);
    if (unknown_policies_) made.departures.insert(Departure::PolicyNotFollowed);
    return made;
  }

 private:
  Partition choose() {
    Partition eager{.saved = eager_, .bytes = bytes_of(eager_), .eager_bytes = bytes_of(eager_)};
    if (has_regions_) eager.eager_bytes = bytes_with_regions();
    if (std::ranges::none_of(can_pay_, [](bool can) { return can; })) return eager;
    const std::optional<Choice> fastest = within(static_cast<double>(eager.eager_bytes));
    if (!fastest) return eager;
    Partition best = made_of(*fastest, eager.eager_bytes);
    if (!way_.recompute || way_.memory_budget == 1) return best;
    const double most =
        way_.memory_budget > 1 ? way_.memory_budget : way_.memory_budget * static_cast<double>(best.bytes);
    wanted_bytes_ = way_.memory_budget > 0 ? most : INFINITY;  // 0 asks for the least there is
    if (static_cast<double>(best.bytes) <= most) return best;
    if (const auto smaller = within(most)) best = made_of(*smaller, eager.eager_bytes);
    return best;
  }

  struct Choice {
    std::vector<bool> saved;  // by value
    std::vector<bool> again;  // by operator of the forward
  };

  const AtenNode& node(size_t i) const { return joint_.aten_nodes[i]; }

  template <typename Visit>
  void for_each_result(size_t i, Visit visit) const {
    for (const ValueId id : node(i).results) {
      if (id != kNoValue && joint_.values[id].producer == static_cast<int32_t>(i)) visit(id);
    }
  }

  bool is_forward(ValueId id) const {
    const graph::Value& value = joint_.values[id];
    return value.kind == graph::ValueKind::Result && static_cast<size_t>(value.producer) < range_.forward;
  }

  double bytes(ValueId id) const {
    const graph::TensorMeta& meta = joint_.values[id].meta;
    double elements = 1;
    for (const int64_t size : meta.sizes) elements *= static_cast<double>(size);
    return elements * static_cast<double>(c10::elementSize(meta.dtype));
  }

  double elements(ValueId id) const {
    return bytes(id) / static_cast<double>(c10::elementSize(joint_.values[id].meta.dtype));
  }

  Partition made_of(const Choice& choice, int64_t eager_bytes) const {
    Partition made{.saved = choice.saved, .bytes = bytes_of(choice.saved), .eager_bytes = eager_bytes};
    std::set<ValueId> reread;
    for (size_t i = 0; i < range_.forward; ++i) {
      if (!choice.again[i]) continue;
      graph::for_each_operand(node(i), [&](ValueId id) {
        if (!choice.saved[id] && may_reread(id, i)) reread.insert(id);
      });
    }
    made.reread.assign(reread.begin(), reread.end());
    return made;
  }

  // -- what is known of operators
  // --------------------------------------------------------------------------------------

  /// Operators of one checkpoint are a region, which is numbered by its torch node.
  void find_regions() {
    region_.assign(range_.forward, -1);
    kept_.assign(range_.forward, false);
    std::map<int32_t, std::vector<size_t>> operators;  // by torch node
    for (size_t i = 0; i < range_.forward && !way_.checkpoints.empty(); ++i) {
      const int32_t torch_node = node(i).torch_node;
      if (torch_node < 0 || !way_.checkpoints.contains(joint_.torch_nodes[torch_node].target.get())) continue;
      operators[torch_node].push_back(i);
    }
    for (const auto& [torch_node, inside] : operators) {
      const std::vector<bool>& marks = way_.checkpoints.at(joint_.torch_nodes[torch_node].target.get());
      if (!marks.empty() && marks.size() != inside.size()) {  // they are not the operators that the policy was asked of
        unknown_policies_ = true;
        continue;
      }
      for (size_t k = 0; k < inside.size(); ++k) {
        region_[inside[k]] = torch_node;
        kept_[inside[k]] = !marks.empty() && marks[k];
      }
      has_regions_ = true;
    }
    leaves_region_.assign(range_.forward, false);
    if (!has_regions_) return;
    for (size_t i = 0; i < range_.forward; ++i) {
      graph::for_each_operand(node(i), [&](ValueId id) {
        if (!is_forward(id)) return;
        const int32_t producer = joint_.values[id].producer;
        if (region_[producer] != region_[i]) leaves_region_[producer] = true;
      });
    }
    for (size_t i = 0; i < range_.forward; ++i) {
      for_each_result(i, [&](ValueId id) {
        if (aliases_.output(id)) leaves_region_[i] = true;
      });
    }
  }

  /// Where the memory of each group of values is written last.
  void find_writes() {
    for (size_t i = 0; i < joint_.aten_nodes.size(); ++i) {
      for (size_t arg = 0; arg < node(i).args.size(); ++arg) {
        if (!graph::writes_argument(node(i), arg)) continue;
        graph::for_each_tensor(node(i).args[arg], [&](ValueId id) { last_write_[aliases_.group(id)] = i; });
      }
    }
  }

  bool written_after(ValueId id, size_t i) const {
    const auto found = last_write_.find(aliases_.group(id));
    return found != last_write_.end() && found->second > i;
  }

  /// It gives the same again when the backward runs, and nobody sees that it ran twice.
  bool gives_the_same_again(size_t i) const {
    const AtenNode& op = node(i);
    // What a checkpoint's function casts, it casts again.
    const bool in_checkpoint = region_[i] >= 0 && graph::is_kept_cast(op);
    if (!in_checkpoint && !passes::is_repeatable(op)) return false;
    bool same = true;
    for (const ValueId id : op.results) {
      if (id == kNoValue) continue;
      same &= !changed_.contains(id) && !written_after(id, i) &&
              std::ranges::count(joint_.symbols, id, &graph::SymbolBinding::value) == 0;
    }
    graph::for_each_operand(op, [&](ValueId id) { same &= !changed_.contains(id) && !written_after(id, i); });
    return same;
  }

  void find_repeatable() {
    is_view_.assign(range_.forward, false);
    can_pay_.assign(range_.forward, false);
    for (size_t i = 0; i < range_.forward; ++i) {
      is_view_[i] = is_repeatable_view(i);
      const bool wanted = region_[i] < 0 ? way_.recompute : !leaves_region_[i] || way_.recompute;
      can_pay_[i] = !is_view_[i] && wanted && !kept_[i] && gives_the_same_again(i);
    }
  }

  /// A view that is made again of what it is a view of: the same memory, whatever was written to it.
  bool is_repeatable_view(size_t i) const {
    const graph::Effects effects = graph::effects_of(node(i).op);
    if (!effects.aliases || effects.writes) return false;
    bool same = true;
    graph::for_each_operand(node(i), [&](ValueId id) { same &= !changed_.contains(id); });
    for (const ValueId id : node(i).results) same &= id == kNoValue || !changed_.contains(id);
    return same;
  }

  bool is_pointwise(size_t i) const { return node(i).op.hasTag(at::Tag::pointwise); }
  bool is_fused(size_t i) const { return is_view_[i] || (way_.is_fused && way_.is_fused(node(i))); }

  /// Values that are in memory in any case: what an operator makes or reads that is called.
  void find_materialised() {
    materialised_.assign(joint_.values.size(), false);
    for (size_t i = range_.forward; i-- > 0;) {
      if (is_view_[i]) {
        bool any = false;
        for_each_result(i, [&](ValueId id) { any |= materialised_[id]; });
        if (any) graph::for_each_operand(node(i), [&](ValueId id) { materialised_[id] = true; });
      } else if (!is_fused(i)) {
        graph::for_each_operand(node(i), [&](ValueId id) { materialised_[id] = true; });
        for_each_result(i, [&](ValueId id) { materialised_[id] = true; });
      }
    }
    called_reads_.assign(joint_.values.size(), false);
    for (size_t i = range_.begin; i < range_.end; ++i) {
      if (way_.is_fused && way_.is_fused(node(i))) continue;
      graph::for_each_operand(node(i), [&](ValueId id) { called_reads_[id] = true; });
    }
    for (size_t i = range_.forward; i-- > 0;) {
      bool any = false;
      if (is_view_[i]) for_each_result(i, [&](ValueId id) { any |= called_reads_[id]; });
      if (any) graph::for_each_operand(node(i), [&](ValueId id) { called_reads_[id] = true; });
    }
  }

  /// What eager saves: what the backward reads, and of a view that it reads what that is a view of.
  void find_eager() {
    eager_.assign(joint_.values.size(), false);
    std::vector<bool> seen(joint_.values.size(), false);
    std::vector<ValueId> open = reads_;
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      if (seen[id]) continue;
      seen[id] = true;
      if (is_forward(id) && is_view_[joint_.values[id].producer]) {
        graph::for_each_operand(node(joint_.values[id].producer), [&](ValueId of) { open.push_back(of); });
      } else if (joint_.values[id].kind != graph::ValueKind::Constant) {
        eager_[id] = true;
      }
    }
  }

  /// Memory that only being saved keeps.
  double memory(ValueId id) const { return aliases_.input(id) || aliases_.output(id) ? 0 : bytes(id); }

  int64_t bytes_of(const std::vector<bool>& saved) const {
    std::map<int32_t, double> by_group;  // two views of the same memory are not two memories
    for (size_t i = 0; i < saved.size(); ++i) {
      if (!saved[i]) continue;
      const auto id = static_cast<ValueId>(i);
      double& most = by_group[aliases_.group(id)];
      most = std::max(most, memory(id));
    }
    double sum = 0;
    for (const auto& [group, most] : by_group) sum += most;
    return static_cast<int64_t>(sum);
  }

  /// Eager's where regions keep nothing but what they are given.
  int64_t bytes_with_regions() const {
    std::vector<bool> saved = eager_;
    for (size_t i = 0; i < range_.forward; ++i) {
      if (region_[i] < 0) continue;
      if (!leaves_region_[i]) for_each_result(i, [&](ValueId id) { saved[id] = kept_[i] && !is_view_[i]; });
      graph::for_each_operand(node(i), [&](ValueId id) {
        if (is_forward(id) && region_[joint_.values[id].producer] != region_[i]) saved[id] = true;
      });
    }
    return bytes_of(saved);
  }

  // -- costs
  // -----------------------------------------------------------------------------------------------------------

  bool may_save(ValueId id) const {
    if (eager_[id]) return true;
    if (joint_.values[id].kind == graph::ValueKind::Input) return way_.memory_budget != 1;
    if (!is_forward(id) || aliases_.input(id) || aliases_.output(id) || changed_.contains(id)) return false;
    const auto producer = static_cast<size_t>(joint_.values[id].producer);
    return !is_view_[producer] && !written_after(id, producer);
  }

  double saving(ValueId id, double price) const {
    double cost = bytes(id) * (materialised_[id] || aliases_.output(id) ? 1 : 2);
    if (free_.empty() || !free_[id]) cost += price * memory(id);
    const int32_t producer = joint_.values[id].producer;
    if (producer >= 0 && region_[producer] >= 0 && !leaves_region_[producer] && !kept_[producer]) {
      cost = 1000 * (cost + 1);
    }
    return cost + 1;
  }

  double recomputing(size_t i) const {
    if (is_view_[i]) return 0;
    if (region_[i] >= 0 && !leaves_region_[i]) return 1;
    double moved = 0, product = 1, largest = 0, called = 0;
    const auto count = [&](ValueId id) {
      moved += bytes(id);
      product *= std::max(1.0, elements(id));
      largest = std::max(largest, elements(id));
    };
    graph::for_each_operand(node(i), count);
    for_each_result(i, [&](ValueId id) {
      count(id);
      if (called_reads_[id]) called += 2 * bytes(id);
    });
    if (is_pointwise(i) && is_fused(i)) return 2 * largest + called + 1;
    // Of a product of matrices the root of the three sizes' product is how often it multiplies.
    const double work = is_fused(i) ? 0 : 2 * std::sqrt(product);
    return 4 * moved + work / 8 + called + 1;
  }

  // -- the cut
  // ---------------------------------------------------------------------------------------------------------

  /// The cheapest choice that keeps at most so many bytes, or else the fewest that can be.
  std::optional<Choice> within(double most) {
    const auto fits = [&](const Choice& choice) { return static_cast<double>(bytes_of(choice.saved)) <= most; };
    auto larger = cut(0);
    if (!larger || fits(*larger)) return larger;
    auto best = cut(kHighestPrice);
    if (!best || !fits(*best)) return best;
    double low = 1.0 / 64, high = kHighestPrice;
    for (int round = 0; round < 10; ++round) {
      const double price = std::sqrt(low * high);
      auto found = cut(price);
      if (!found) return best;
      const bool found_fits = fits(*found);
      (found_fits ? high : low) = price;
      (found_fits ? best : larger) = std::move(found);
    }
    // Equal layers are all dear at one price: what the larger choice saves besides is had for nothing, as far as it
    // fits.
    std::vector<ValueId> besides;
    for (size_t id = 0; id < larger->saved.size(); ++id) {
      const auto value = static_cast<ValueId>(id);
      if (larger->saved[id] && !best->saved[id] && memory(value) > 0) besides.push_back(value);
    }
    size_t fitting = 0, too_many = besides.size() + 1;
    while (fitting + 1 < too_many) {
      const size_t count = (fitting + too_many) / 2;
      free_.assign(joint_.values.size(), false);
      for (size_t i = 0; i < count; ++i) free_[besides[i]] = true;
      auto found = cut(high);
      if (!found) break;
      const bool found_fits = fits(*found);
      (found_fits ? fitting : too_many) = count;
      if (found_fits) best = std::move(found);
    }
    free_.clear();
    return best;
  }

  /// Nothing: it takes too long.
  std::optional<Choice> cut(double price) {
    const size_t values = joint_.values.size(), source = values + range_.forward, sink = source + 1;
    Network network(sink + 1);
    const auto whole = [](double cost) { return static_cast<int64_t>(std::min(cost, kMostCost)); };
    // From what is read backwards, as far as it could be computed again.
    std::vector<bool> seen(values, false), used(range_.forward, false);
    std::vector<ValueId> open;
    const auto reach = [&](ValueId id) {
      if (joint_.values[id].kind == graph::ValueKind::Constant || seen[id]) return;
      seen[id] = true;
      open.push_back(id);
    };
    for (const ValueId id : reads_) {
      if (joint_.values[id].kind == graph::ValueKind::Constant) continue;
      reach(id);
      network.connect(id, sink, Network::kInfinite);
    }
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      const int64_t cost = may_save(id) ? whole(saving(id, price)) : Network::kInfinite;
      if (!is_forward(id)) {
        network.connect(source, id, cost);
        continue;
      }
      const auto producer = static_cast<size_t>(joint_.values[id].producer);
      const size_t op = values + producer;
      network.connect(op, id, is_view_[producer] ? Network::kInfinite : cost);
      if (used[producer]) continue;
      used[producer] = true;
      if (!is_view_[producer] && !may_run_again(producer)) {
        network.connect(source, op, Network::kInfinite);
        continue;
      }
      network.connect(source, op, whole(recomputing(producer)));
      graph::for_each_operand(node(producer), [&](ValueId of) {
        if (joint_.values[of].kind == graph::ValueKind::Constant || may_reread(of, producer)) return;
        reach(of);
        network.connect(of, op, Network::kInfinite);
      });
    }
    const auto side = network.sink_side(source, sink, looks_left_);
    looks_left_ -= std::min(looks_left_, network.looks());
    if (!side) return std::nullopt;
    Choice choice{std::vector<bool>(values, false), std::vector<bool>(side->begin() + values, side->begin() + source)};
    for (size_t id = 0; id < values; ++id) {
      if (!seen[id] || !(*side)[id]) continue;
      const auto value = static_cast<ValueId>(id);
      choice.saved[id] = !is_forward(value) || !choice.again[static_cast<size_t>(joint_.values[id].producer)];
    }
    return choice;
  }

  /// A checkpoint's function finds its inputs as they are when it runs again, and eager checks none of them.
  bool may_reread(ValueId id, size_t by) const {
    return joint_.values[id].kind == graph::ValueKind::Input && !eager_[id] && region_[by] >= 0;
  }

  /// What eager saves of the segment's results is saved: a later write to it is an error as in eager.
  bool may_run_again(size_t i) const {
    if (!can_pay_[i]) return false;
    bool may = true;
    for_each_result(i, [&](ValueId id) { may &= !eager_[id] || !(aliases_.output(id) || aliases_.input(id)); });
    return may;
  }

  const Graph& joint_;
  const JointRange range_;
  const std::vector<ValueId>& reads_;
  const PartitionWay& way_;
  const graph::Aliases aliases_;
  const std::set<ValueId> changed_ = graph::changed_in_place(joint_);
  std::map<int32_t, size_t> last_write_;  // by group of values
  // By operator of the forward.
  std::vector<int32_t> region_;
  std::vector<bool> leaves_region_, is_view_, can_pay_;
  std::vector<bool> kept_;  // by its checkpoint's policy
  // By value.
  std::vector<bool> materialised_, called_reads_, eager_;
  std::vector<bool> free_;  // of the price of memory; empty: none is
  bool has_regions_ = false;
  bool unknown_policies_ = way_.unknown_policies;
  size_t looks_left_ = kMostLooks;
  double wanted_bytes_ = INFINITY;
};

}  // namespace

Partition partition(const Graph& joint, const JointRange& range, const std::vector<ValueId>& reads,
                    const PartitionWay& way) {
  return Partitioner(joint, range, reads, way).run();
}

}  // namespace magneto::autograd
