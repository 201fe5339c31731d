// The cheapest cut of a network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace magneto::autograd {

/// Nodes, numbered from 0, and directed edges with capacities.
class Network {
 public:
  /// Of an edge that no cut may go through. Others are far below it.
  static constexpr int64_t kInfinite = int64_t{1} << 60;

  explicit Network(size_t nodes) : edges_of_(nodes) {}

  void connect(size_t from, size_t to, int64_t capacity);

  /// The nodes on the sink's side of a cheapest cut between the two: of several, that with the fewest there. Nothing:
  /// it takes more than `most` looks at an edge. Call it once: it uses up the capacities.
  std::optional<std::vector<bool>> sink_side(size_t source, size_t sink, size_t most);
  size_t looks() const { return looks_; }

 private:
  struct Edge {
    size_t to;
    int64_t left;  // of the capacity
  };

  bool find_levels(size_t source, size_t sink);
  void block(size_t source, size_t sink);

  std::vector<Edge> edges_;                    // each followed by its reverse
  std::vector<std::vector<size_t>> edges_of_;  // by node
  std::vector<int32_t> levels_;                // distance from the source; -1: not to be reached
  size_t looks_ = 0, most_ = 0;
};

}  // namespace magneto::autograd
