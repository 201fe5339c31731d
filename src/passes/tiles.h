// Attention whose scores are computed by tiles: a block of queries by a block of keys at a time. What is found, and
// what is written in its place (tiles.cpp, tile_regions.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "graph/graph.h"
#include "passes/passes.h"
#include "shapes/size.h"

namespace magneto::passes {

/// A softmax over scores, and the two products around it.
struct TiledAttention {
  /// The operators that it stands for: the last product, and others that read the scores.
  int32_t product = -1, logsumexp = -1, all_masked = -1, maximum = -1;
  /// [batch, heads, length, head size]; key and value may have fewer heads, which groups of queries share, and stand
  /// for tensors of the dtype in which scores are computed.
  graph::ValueId query = graph::kNoValue, key = graph::kNoValue, value = graph::kNoValue;
  /// The product of query and key, and what the softmax is of: [batch, heads, queries, keys].
  graph::ValueId scores = graph::kNoValue, masked = graph::kNoValue;
  /// The operators between the two, which are computed on tiles.
  std::set<int32_t> inside;
  /// What they read of the graph around.
  std::vector<graph::ValueId> operands;
  /// Where one of these is false, a score is minus infinity.
  std::vector<graph::ValueId> conditions;
  /// Of the operators inside, masks that mask nothing: their result is what they are given.
  std::set<int32_t> unmasked;
  /// Of the operators inside those that look elements up at computed places.
  std::vector<int32_t> lookups;

  /// Of the operators that it stands for.
  int32_t first() const;
};

/// The tensor that argument `i` is; kNoValue for others.
graph::ValueId operand(const graph::AtenNode& node, size_t i);

/// The attention that ends with operator `node`, where tiles pay; nothing for others.
class TileFinder {
 public:
  explicit TileFinder(const Functional& functional);
  std::optional<TiledAttention> find(int32_t node) const;

 private:
  const graph::AtenNode* producer(graph::ValueId id) const;
  bool is_view(const graph::AtenNode& node) const;
  bool looks_through(const graph::AtenNode& node) const;
  graph::ValueId with_heads(graph::ValueId id) const;
  graph::ValueId without_copies(graph::ValueId id) const;
  bool is_minus_infinity(graph::ValueId id) const;
  bool is_true(graph::ValueId id) const;
  bool find_scores(TiledAttention& found) const;
  bool find_inside(TiledAttention& found) const;
  void find_conditions(TiledAttention& found) const;
  bool find_readers(TiledAttention& found) const;
  bool is_inside(const graph::AtenNode& node, int64_t large) const;
  bool pays(const TiledAttention& found) const;

  const graph::Graph& graph_;
  std::vector<std::vector<int32_t>> readers_;
  /// Read from outside.
  std::vector<bool> leaves_;
};

/// `meta` as a tensor of these sizes without gaps.
void give_geometry(graph::TensorMeta& meta, const shapes::Sizes& sizes);
/// An argument that is a list of sizes.
graph::AtenArg size_list(const shapes::Sizes& sizes);

/// What `magneto::tiled_attention` runs for a tile, each a function of (position, scores, result, greatest, sum,
/// operands of the graph around). `position` has nothing but sizes: batch, head, first query and first key of the tile.
struct TileRegions {
  /// Gives weights for values: what is done to each score, and the softmax, whose state so far is brought up to date.
  std::shared_ptr<const graph::Region> scores;
  /// Whether some score of the tile may be more than minus infinity: asked where they are masked. Whether an index in
  /// it is out of bounds: asked where there are lookups, of tiles whose scores are not computed.
  std::shared_ptr<const graph::Region> live, lookups;
  bool is_masked = false, looks_up = false;
  /// `live` and `lookups` are the same for all batches, for all heads.
  bool every_batch = true, every_head = true;
  std::vector<graph::ValueId> operands;  // values of the graph around
};
TileRegions make_tile_regions(const graph::Graph& whole, const TiledAttention& found, int32_t number);

/// The graph with `magneto::tiled_attention` for each that pays; nothing where there is none.
std::optional<Functional> tile_attention(const Functional& functional);

}  // namespace magneto::passes
