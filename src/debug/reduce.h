// Delta debugging of graphs: the smallest part of one for which a question is still answered with yes.
//
// What a graph computes does not matter here, only its skeleton: nodes in order, the values that each reads and makes.
// A part keeps some of the nodes. What they read and none of them makes becomes an input, so that every choice of nodes
// is a graph; values of one class may also stand for each other, so that a node can go and its operand take its place.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace magneto::debug {

/// Index of a value of the skeleton.
using Index = int32_t;

struct Skeleton {
  struct Node {
    std::vector<Index> operands, results;
  };
  std::vector<Node> nodes;
  /// By value: equal numbers mark values that may stand for each other (one dtype, device and geometry). Negative: the
  /// value can't be an input or an output, as it is no tensor. `kFree`: it is there without being an input.
  std::vector<Index> classes;
  static constexpr Index kFree = -2;
  std::vector<Index> inputs, outputs;
};

/// A part of a skeleton.
struct Part {
  std::vector<bool> kept;      // by node
  std::vector<Index> outputs;  // values that are made or are inputs
  std::vector<Index> read_as;  // by value: the value that is read in its place, itself if none is

  /// What kept nodes and outputs read and no kept node makes, each once: the skeleton's inputs first, in their order.
  std::vector<Index> inputs(const Skeleton& skeleton) const;
  int64_t node_count() const;
};

enum class Answer : uint8_t { No, Yes, Stop };
using Question = std::function<Answer(const Part&)>;

/// The smallest part found whose answer is yes. The answer for the whole is taken to be yes and is not asked for. No
/// part is asked about twice. After `Stop` the best so far is the result.
Part reduce(const Skeleton& skeleton, const Question& question);

}  // namespace magneto::debug
