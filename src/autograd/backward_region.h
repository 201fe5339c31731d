// The part of autograd's graph that one backward passes and that one program can compute: all nodes that are known
// (generated ones of PyTorch, compiled segments) and that only such lead to. Where it ends, at leaves or at nodes that
// are not known, PyTorch's engine goes on with the gradients that the program gives.
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
  /// Gradients flow from `roots` to `asked`, or, where these are none, to all leaves. `tangents`: as many as roots.
  /// Throws what the engine would raise when it came to a tensor that is saved.
  BackwardRegion(const torch::autograd::edge_list& roots, const torch::autograd::variable_list& tangents,
                 const torch::autograd::edge_list& asked);

  /// A place among the steps, and the input of that node.
  struct Target {
    int32_t step = -1;  // none: nobody needs the gradient
    uint32_t input = 0;
  };
  enum class Role : uint8_t { Inside, End, Outside };
  /// A node, in the order in which the engine comes to it.
  struct Step {
    NodePointer node;
    Role role = Role::Inside;
    std::vector<Target> next = {};
    /// Of `tensors`, those that the node has saved.
    size_t first_tensor = 0, tensors = 0;
    /// An end: which inputs the region gives. Ascending.
    std::vector<uint32_t> given = {};
  };

  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Target>& roots() const { return roots_; }
  /// Saved by the nodes inside.
  const torch::autograd::variable_list& tensors() const { return tensors_; }
  size_t count(Role role) const;
  /// Regions of the same key are computed by the same program.
  const std::vector<int64_t>& key() const { return key_; }
  /// Equal for regions that differ in numbers alone: sizes, mostly.
  size_t structure() const { return structure_; }
  /// What the key has the addresses of.
  const std::vector<std::shared_ptr<const void>>& owners() const { return owners_; }
  /// Why nodes outside are left to the engine, first ones only, and how many there are of each.
  const std::map<std::string, int64_t>& left() const { return left_; }

  /// As the engine frees what nodes have saved when it has called them; frees `tensors`, too.
  void release(bool keep_graph);

 private:
  class Walk;

  void add_keys(const torch::autograd::variable_list& tangents);
  void add_key(Step& step);

  std::vector<Step> steps_;
  std::vector<Target> roots_;
  torch::autograd::variable_list tensors_;
  std::vector<int64_t> key_;
  size_t structure_ = 0;
  std::vector<std::shared_ptr<const void>> owners_;
  std::map<std::string, int64_t> left_;
};

}  // namespace magneto::autograd
