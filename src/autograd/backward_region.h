// The nodes that one backward comes to, in the engine's order, cut into pieces. Programs compute pieces: known nodes
// (generated ones of PyTorch, compiled segments). Between two of these stands a node that must be called: one with
// hooks, a custom function, one that is not known. At leaves PyTorch's engine goes on.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fake/autograd_node.h"

namespace magneto::autograd {

/// A tensor of the CPU that a capture can have as an input.
bool is_plain(const at::Tensor& tensor);

class BackwardRegion {
 public:
  /// Gradients flow from `roots` to `asked`, or, where these are none, to all leaves. Where something is asked for, the
  /// engine goes on at nodes that must be called, too: it knows which of their gradients are wanted.
  BackwardRegion(const torch::autograd::edge_list& roots, const torch::autograd::edge_list& asked);

  /// A place among the steps, and the input of that node.
  struct Target {
    int32_t step = -1;  // none: nobody needs the gradient
    uint32_t input = 0;
  };
  enum class Role : uint8_t { Inside, Called, End, Outside };
  /// A node, in the order in which the engine comes to it.
  struct Step {
    NodePointer node;
    Role role = Role::Inside;
    std::vector<Target> next = {};
    /// An end: which inputs the region gives. Ascending.
    std::vector<uint32_t> given = {};
  };

  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Target>& roots() const { return roots_; }
  size_t count(Role role) const;
  /// The first step from `first` on that must be called.
  size_t piece_end(size_t first) const;
  /// Why nodes outside are left to the engine, first ones only, and how many there are of each.
  const std::map<std::string, int64_t>& left() const { return left_; }

 private:
  class Walk;

  std::vector<Step> steps_;
  std::vector<Target> roots_;
  std::map<std::string, int64_t> left_;
};

/// By step and input: the gradients that have arrived there and were not yet used.
using Arrived = std::vector<torch::autograd::variable_list>;

/// Steps of a region behind each other, none of which must be called.
class BackwardPiece {
 public:
  using Step = BackwardRegion::Step;
  using Role = BackwardRegion::Role;
  using Target = BackwardRegion::Target;

  /// From step `first` on, with what has arrived. Throws what the engine would raise when it came to a tensor that is
  /// saved.
  BackwardPiece(const BackwardRegion& region, size_t first, const Arrived& arrived);

  const BackwardRegion& region() const { return region_; }
  size_t first() const { return first_; }
  size_t end() const { return end_; }
  /// It has nothing to compute.
  bool empty() const { return saved_.empty(); }
  /// Saved by the nodes inside.
  const torch::autograd::variable_list& tensors() const { return tensors_; }
  /// By step of the piece: where its part of these begins.
  size_t first_tensor(size_t step) const { return saved_[step - first_]; }
  /// Places whose gradient the piece uses or adds to, and what has arrived there.
  const std::vector<Target>& taken() const { return taken_; }
  const torch::autograd::variable_list& tangents() const { return tangents_; }
  /// Pieces of the same key are computed by the same program.
  const std::vector<int64_t>& key() const { return key_; }
  /// Equal for pieces that differ in numbers alone: sizes, mostly.
  size_t structure() const { return structure_; }
  /// What the key has the addresses of.
  const std::vector<std::shared_ptr<const void>>& owners() const { return owners_; }

  /// As the engine frees what nodes have saved when it has called them; frees `tensors` and tangents, too.
  void release(bool keep_graph);

 private:
  void take(const Target& place, const Arrived& arrived);
  void add_key(const Step& step);

  const BackwardRegion& region_;
  const size_t first_, end_;
  std::vector<size_t> saved_;
  std::vector<Target> taken_;
  torch::autograd::variable_list tensors_, tangents_;
  std::vector<int64_t> key_;
  size_t structure_ = 0;
  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace magneto::autograd
