#include "debug/reduce.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace magneto::debug {

int64_t Part::node_count() const { return std::count(kept.begin(), kept.end(), true); }

std::vector<Index> Part::inputs(const Skeleton& skeleton) const {
  std::vector<bool> made(skeleton.classes.size(), false), needed(skeleton.classes.size(), false);
  std::vector<Index> found;
  const auto read = [&](Index value) {
    value = read_as[value];
    if (made[value] || needed[value] || skeleton.classes[value] == Skeleton::kFree) return;
    needed[value] = true;
    found.push_back(value);
  };
  for (size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i]) continue;
    for (const Index value : skeleton.nodes[i].operands) read(value);
    for (const Index value : skeleton.nodes[i].results) made[value] = true;
  }
  for (const Index value : outputs) read(value);
  std::vector<Index> ordered;
  for (const Index value : skeleton.inputs) {
    if (needed[value]) ordered.push_back(value);
  }
  for (const Index value : found) {
    if (std::ranges::find(skeleton.inputs, value) == skeleton.inputs.end()) ordered.push_back(value);
  }
  return ordered;
}

namespace {

class Reducer {
 public:
  Reducer(const Skeleton& skeleton, const Question& question)
      : skeleton_(skeleton), question_(question), producer_(skeleton.classes.size(), -1) {
    const size_t nodes = skeleton.nodes.size();
    for (size_t i = nodes; i-- > 0;) {
      for (const Index value : skeleton.nodes[i].results) producer_[value] = static_cast<Index>(i);
    }
    for (const Index value : skeleton.inputs) producer_[value] = -1;
    best_.kept.assign(nodes, true);
    best_.outputs = skeleton.outputs;
    best_.read_as.resize(skeleton.classes.size());
    std::iota(best_.read_as.begin(), best_.read_as.end(), 0);
  }

  Part run() {
    // The first two find the place in a few questions, however large the graph; the others work on what is left.
    cut_tail();
    cut_head();
    for (bool smaller = true; smaller && !stopped_;) {
      const auto before = size();
      drop_unread();
      drop_outputs();
      drop_nodes();
      bypass_nodes();
      merge_inputs();
      smaller = size() < before;
    }
    return best_;
  }

 private:
  /// What a reduction makes smaller: first nodes, then inputs, then outputs.
  std::vector<size_t> size() const {
    return {static_cast<size_t>(best_.node_count()), best_.inputs(skeleton_).size(), best_.outputs.size()};
  }

  /// Asks about a part, which becomes the best one if the answer is yes.
  bool take(Part part) {
    if (stopped_) return false;
    close(part);
    if (part.outputs.empty() && !skeleton_.outputs.empty()) return false;
    if (part.kept == best_.kept && part.outputs == best_.outputs && part.read_as == best_.read_as) return false;
    if (!asked_.insert({part.kept, part.outputs, part.read_as}).second) return false;
    switch (question_(part)) {
      case Answer::Stop:
        stopped_ = true;
        return false;
      case Answer::No:
        return false;
      case Answer::Yes:
        best_ = std::move(part);
        return true;
    }
    return false;
  }

  /// Keeps the nodes whose results are read and can't be inputs.
  void close(Part& part) const {
    std::vector<bool> needed(skeleton_.classes.size(), false);
    const auto need = [&](Index value) {
      value = part.read_as[value];
      if (skeleton_.classes[value] < 0) needed[value] = true;
    };
    for (const Index value : part.outputs) need(value);
    for (size_t i = part.kept.size(); i-- > 0;) {
      const Skeleton::Node& node = skeleton_.nodes[i];
      const bool wanted = std::ranges::any_of(
          node.results, [&](Index value) { return needed[value] && producer_[value] == static_cast<Index>(i); });
      if (wanted) part.kept[i] = true;
      if (!part.kept[i]) continue;
      for (const Index value : node.operands) need(value);
    }
  }

  /// The values that the nodes before `end` leave to later ones and to the outputs.
  std::vector<Index> live_after(size_t end) const {
    std::vector<bool> made(skeleton_.classes.size(), false), added(skeleton_.classes.size(), false);
    for (size_t i = 0; i < end; ++i) {
      if (!best_.kept[i]) continue;
      for (const Index value : skeleton_.nodes[i].results) made[value] = true;
    }
    std::vector<Index> live;
    const auto add = [&](Index value) {
      if (!made[value] || added[value] || skeleton_.classes[value] < 0) return;
      added[value] = true;
      live.push_back(value);
    };
    for (size_t i = end; i < skeleton_.nodes.size(); ++i) {
      if (!best_.kept[i]) continue;
      for (const Index value : skeleton_.nodes[i].operands) add(value);
    }
    for (const Index value : best_.outputs) add(value);
    // What nobody reads is an output, too: nodes that are there for their effects, and those in front of the cut whose
    // readers are no tensors.
    for (size_t i = 0; i < end && live.empty(); ++i) {
      if (!best_.kept[i]) continue;
      for (const Index value : skeleton_.nodes[i].results) {
        if (skeleton_.classes[value] >= 0) live.assign(1, value);
      }
    }
    return live;
  }

  /// The fewest first nodes.
  void cut_tail() {
    size_t least = 0, enough = skeleton_.nodes.size();
    while (enough - least > 1 && !stopped_) {
      const size_t middle = least + (enough - least) / 2;
      Part part = best_;
      std::fill(part.kept.begin() + static_cast<std::ptrdiff_t>(middle), part.kept.end(), false);
      part.outputs = live_after(middle);
      (take(std::move(part)) ? enough : least) = middle;
    }
  }

  /// The fewest last nodes.
  void cut_head() {
    size_t able = 0, too_many = skeleton_.nodes.size();
    while (too_many - able > 1 && !stopped_) {
      const size_t middle = able + (too_many - able) / 2;
      Part part = best_;
      std::fill(part.kept.begin(), part.kept.begin() + static_cast<std::ptrdiff_t>(middle), false);
      (take(std::move(part)) ? able : too_many) = middle;
    }
  }

  /// Without the nodes that outputs don't need.
  void drop_unread() {
    Part part = best_;
    std::vector<bool> needed(skeleton_.classes.size(), false);
    for (const Index value : part.outputs) needed[part.read_as[value]] = true;
    for (size_t i = part.kept.size(); i-- > 0;) {
      const Skeleton::Node& node = skeleton_.nodes[i];
      part.kept[i] = part.kept[i] && std::ranges::any_of(node.results, [&](Index value) { return needed[value]; });
      if (!part.kept[i]) continue;
      for (const Index value : node.operands) needed[part.read_as[value]] = true;
    }
    take(std::move(part));
  }

  /// Takes out pieces of a list of `count` things, half of them at a time, then quarters... `without(begin, end)` says
  /// whether it could be done; the list is shorter then.
  template <typename Without>
  void halve(size_t count, const Without& without) {
    for (size_t piece = (count + 1) / 2; piece > 0 && !stopped_; piece = piece == 1 ? 0 : (piece + 1) / 2) {
      for (size_t end = count; end > 0 && !stopped_;) {
        const size_t begin = end > piece ? end - piece : 0;
        if (without(begin, end)) count -= end - begin;
        end = begin;
      }
    }
  }

  void drop_outputs() {
    // One alone is what is mostly left.
    for (size_t i = 0; best_.outputs.size() > 1 && i < best_.outputs.size() && i < 8; ++i) {
      Part part = best_;
      part.outputs = {best_.outputs[best_.outputs.size() - 1 - i]};
      if (take(std::move(part))) return drop_unread();
    }
    halve(best_.outputs.size(), [&](size_t begin, size_t end) {
      if (end - begin >= best_.outputs.size()) return false;
      Part part = best_;
      part.outputs.erase(part.outputs.begin() + static_cast<std::ptrdiff_t>(begin),
                         part.outputs.begin() + static_cast<std::ptrdiff_t>(end));
      return take(std::move(part));
    });
    drop_unread();
  }

  std::vector<size_t> kept_nodes() const {
    std::vector<size_t> nodes;
    for (size_t i = 0; i < best_.kept.size(); ++i) {
      if (best_.kept[i]) nodes.push_back(i);
    }
    return nodes;
  }

  void drop_nodes() {
    const std::vector<size_t> all = kept_nodes();
    halve(all.size(), [&](size_t begin, size_t end) {
      const std::vector<size_t> nodes = kept_nodes();
      if (end > nodes.size() || end - begin == nodes.size()) return false;
      Part part = best_;
      for (size_t i = begin; i < end; ++i) part.kept[nodes[i]] = false;
      return take(std::move(part));
    });
    constexpr int64_t kFew = 64;
    if (best_.node_count() == 1 || best_.node_count() > kFew) return;
    // Outputs need not be what the graph gave: the results of a node in the middle will do.
    for (const size_t node : kept_nodes()) {
      if (!best_.kept[node] || best_.node_count() == 1) continue;
      Part part = best_;
      part.kept.assign(part.kept.size(), false);
      part.kept[node] = true;
      part.outputs.clear();
      for (const Index value : skeleton_.nodes[node].results) {
        if (skeleton_.classes[value] >= 0) part.outputs.push_back(value);
      }
      take(std::move(part));
    }
  }

  /// Nodes whose result an operand, or an input, can stand for.
  void bypass_nodes() {
    for (const size_t node : kept_nodes()) {
      if (!best_.kept[node]) continue;
      for (const Index result : skeleton_.nodes[node].results) {
        if (skeleton_.classes[result] < 0) continue;
        std::vector<Index> others = skeleton_.nodes[node].operands;
        const std::vector<Index> inputs = best_.inputs(skeleton_);
        others.insert(others.end(), inputs.begin(), inputs.end());
        const auto other = std::ranges::find_if(others, [&](Index value) { return stands_for(value, result); });
        if (other == others.end()) continue;
        Part part = best_;
        part.kept[node] = false;
        replace(part, result, part.read_as[*other]);
        if (take(std::move(part))) break;
      }
    }
  }

  void merge_inputs() {
    const std::vector<Index> inputs = best_.inputs(skeleton_);
    for (size_t i = inputs.size(); i-- > 1;) {
      for (size_t j = 0; j < i; ++j) {
        if (!stands_for(inputs[j], inputs[i])) continue;
        Part part = best_;
        replace(part, inputs[i], inputs[j]);
        if (take(std::move(part))) break;
      }
    }
  }

  bool stands_for(Index value, Index other) const {
    value = best_.read_as[value];
    return value != other && skeleton_.classes[value] >= 0 && skeleton_.classes[value] == skeleton_.classes[other];
  }

  static void replace(Part& part, Index value, Index by) {
    for (Index& read : part.read_as) {
      if (read == value) read = by;
    }
    std::vector<Index> outputs;
    for (Index output : part.outputs) {
      if (output == value) output = by;
      if (std::ranges::find(outputs, output) == outputs.end()) outputs.push_back(output);
    }
    part.outputs = std::move(outputs);
  }

  const Skeleton& skeleton_;
  const Question& question_;
  std::vector<Index> producer_;  // by value; -1: an input
  Part best_;
  std::set<std::tuple<std::vector<bool>, std::vector<Index>, std::vector<Index>>> asked_;
  bool stopped_ = false;
};

}  // namespace

Part reduce(const Skeleton& skeleton, const Question& question) { return Reducer(skeleton, question).run(); }

}  // namespace magneto::debug
