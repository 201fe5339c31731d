// Dinic's algorithm: as long as the sink can be reached, paths of the least number of edges are filled until none is
// left; each round makes the least number larger.
#include "autograd/min_cut.h"

#include <algorithm>

namespace magneto::autograd {

void Network::connect(size_t from, size_t to, int64_t capacity) {
  edges_of_[from].push_back(edges_.size());
  edges_.push_back({to, capacity});
  edges_of_[to].push_back(edges_.size());
  edges_.push_back({from, 0});
}

bool Network::find_levels(size_t source, size_t sink) {
  levels_.assign(edges_of_.size(), -1);
  levels_[source] = 0;
  std::vector<size_t> reached = {source};
  for (size_t i = 0; i < reached.size(); ++i) {
    looks_ += edges_of_[reached[i]].size();
    for (const size_t edge : edges_of_[reached[i]]) {
      const auto& [to, left] = edges_[edge];
      if (left == 0 || levels_[to] >= 0) continue;
      levels_[to] = levels_[reached[i]] + 1;
      reached.push_back(to);
    }
  }
  return levels_[sink] >= 0;
}

/// Fills paths along the levels until there is none.
void Network::block(size_t source, size_t sink) {
  std::vector<size_t> next(edges_of_.size(), 0);  // by node: its first edge that may lead on
  std::vector<size_t> path;                       // edges
  size_t at = source;
  while (looks_ <= most_) {
    if (at == sink) {
      int64_t flow = kInfinite;
      for (const size_t edge : path) flow = std::min(flow, edges_[edge].left);
      size_t kept = path.size();  // up to the first edge that is full now
      for (size_t i = path.size(); i-- > 0;) {
        edges_[path[i]].left -= flow;
        edges_[path[i] ^ 1].left += flow;
        if (edges_[path[i]].left == 0) kept = i;
      }
      looks_ += path.size();
      path.resize(kept);
      at = path.empty() ? source : edges_[path.back()].to;
      continue;
    }
    const std::vector<size_t>& edges = edges_of_[at];
    for (; next[at] < edges.size(); ++next[at]) {
      const auto& [to, left] = edges_[edges[next[at]]];
      ++looks_;
      if (left > 0 && levels_[to] == levels_[at] + 1) break;
    }
    if (next[at] < edges.size()) {
      path.push_back(edges[next[at]]);
      at = edges_[path.back()].to;
    } else if (at == source) {
      return;
    } else {
      at = edges_[path.back() ^ 1].to;
      path.pop_back();
      ++next[at];
    }
  }
}

std::optional<std::vector<bool>> Network::sink_side(size_t source, size_t sink, size_t most) {
  most_ = most;
  while (find_levels(source, sink) && looks_ <= most_) block(source, sink);
  if (looks_ > most_) return std::nullopt;
  // Where no edge with something left leads to the sink is the source's side.
  std::vector<bool> side(edges_of_.size(), false);
  side[sink] = true;
  std::vector<size_t> found = {sink};
  while (!found.empty()) {
    const size_t node = found.back();
    found.pop_back();
    for (const size_t edge : edges_of_[node]) {
      const size_t from = edges_[edge].to;
      if (side[from] || edges_[edge ^ 1].left == 0) continue;
      side[from] = true;
      found.push_back(from);
    }
  }
  return side;
}

}  // namespace magneto::autograd
