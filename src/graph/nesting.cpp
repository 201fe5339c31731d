#include "graph/nesting.h"

#include <algorithm>
#include <ranges>
#include <set>

namespace magneto::graph {
namespace {

class Nesting {
 public:
  explicit Nesting(const std::vector<FlatNode>& nodes) : nodes_(nodes), home_(nodes.size(), 0) {}

  std::vector<Part> run() {
    parts_.emplace_back();
    for (size_t i = 0; i < nodes_.size(); ++i) place(static_cast<int32_t>(i));
    inputs_.resize(parts_.size());
    outputs_.resize(parts_.size());
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const int32_t used : nodes_[i].uses) connect(used, home_[i]);
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].inputs.assign(inputs_[i].begin(), inputs_[i].end());
      parts_[i].outputs.assign(outputs_[i].begin(), outputs_[i].end());
    }
    return std::move(parts_);
  }

 private:
  /// Closes the calls that the node is none of, and opens its own.
  void place(int32_t node) {
    const std::vector<std::string>& calls = nodes_[node].calls;
    const auto [own, open] =
        std::ranges::mismatch(calls, open_, {}, {}, [&](int32_t part) { return parts_[part].key; });
    open_.erase(open, open_.end());
    for (auto call = own; call != calls.end(); ++call) {
      const int32_t parent = current(), made = static_cast<int32_t>(parts_.size());
      parts_.push_back({.key = *call, .parent = parent});
      parts_[parent].items.push_back({.part = made});
      open_.push_back(made);
    }
    home_[node] = current();
    parts_[current()].items.push_back({.node = node});
  }

  int32_t current() const { return open_.empty() ? 0 : open_.back(); }

  bool is_inside(int32_t part, int32_t outer) const {
    while (part >= 0 && part != outer) part = parts_[part].parent;
    return part == outer;
  }

  /// The part `reader` reads a node: it goes out of the parts that only the node is in, and into those that only the
  /// reader is in.
  void connect(int32_t node, int32_t reader) {
    for (int32_t part = reader; !is_inside(home_[node], part); part = parts_[part].parent) inputs_[part].insert(node);
    for (int32_t part = home_[node]; !is_inside(reader, part); part = parts_[part].parent) outputs_[part].insert(node);
  }

  const std::vector<FlatNode>& nodes_;
  std::vector<int32_t> home_;  // the innermost part of each node
  std::vector<int32_t> open_;  // without the first
  std::vector<Part> parts_;
  std::vector<std::set<int32_t>> inputs_, outputs_;
};

}  // namespace

std::vector<Part> nest(const std::vector<FlatNode>& nodes) { return Nesting(nodes).run(); }

}  // namespace magneto::graph
