// The nodes that one backward comes to, in the engine's order, cut into pieces. Programs compute pieces: known nodes
// (generated ones of PyTorch, compiled segments). Between two of these stands a node that must be called: one with
// hooks, a custom function, one that is not known. At leaves PyTorch's engine goes on.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/compiled_node.h"
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

/// Where a number of a piece stands that its program may take as a symbol.
struct NumberPlace {
  enum class Kind : uint8_t {
    Size,      // of a tensor that is saved or has arrived
    Stride,    // of one
    Content,   // what a compiled segment has saved as a tensor of one element
    Gradient,  // a size of a gradient that a node takes or gives
    Listed,    // one of a list that a node keeps: a size, mostly
    Single,    // another number that a node keeps
  };
  Kind kind;
  /// The tensor, by number: first those that are saved, then the tangents. Of the last three the step.
  int32_t owner;
  int32_t dim = 0;
};

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
  /// Pieces of the same key have nodes of the same kind, and differ in numbers and in what compiled segments have
  /// saved.
  const std::vector<int64_t>& key() const { return key_; }
  /// The compiled segments' programs, and the forms of what they have saved.
  const std::vector<int64_t>& programs() const { return programs_; }
  /// With equal key and programs, as many, and in the same places. What compiled segments have saved comes last.
  const std::vector<int64_t>& numbers() const { return numbers_.values; }
  const std::vector<NumberPlace>& places() const { return numbers_.places; }
  /// How many there are of other things: with an equal key, as many.
  size_t outline() const { return outline_; }
  /// Where those of a step begin: sizes of what it takes, then of what its edges take, then what it keeps.
  size_t first_number(size_t step) const { return step_numbers_[step - first_]; }
  /// Where those of a tensor begin: sizes, then strides, then what it holds if that is one of them.
  size_t first_number_of_tensor(size_t tensor) const;
  /// Equal for pieces of nodes of the same kind, whatever is in the key.
  size_t structure() const { return structure_; }
  /// What `programs` has the addresses of.
  const std::vector<std::shared_ptr<const void>>& owners() const { return owners_; }

  /// As the engine frees what nodes have saved when it has called them; frees `tensors` and tangents, too.
  void release(bool keep_graph);

 private:
  struct Numbers {
    std::vector<int64_t> values;
    std::vector<NumberPlace> places;
    void add(int64_t value, NumberPlace place) {
      values.push_back(value);
      places.push_back(place);
    }
  };
  class Fields;

  void take(const Target& place, const Arrived& arrived);
  void add_step(size_t step);
  void add_segment(CompiledNode& node);
  void add_form(const torch::autograd::InputMetadata& meta, size_t step);
  void add_form(const at::Tensor& tensor, std::vector<int64_t>& key, Numbers& numbers);

  const BackwardRegion& region_;
  const size_t first_, end_;
  std::vector<size_t> saved_;
  std::vector<Target> taken_;
  torch::autograd::variable_list tensors_, tangents_;
  std::vector<int64_t> key_, programs_;
  Numbers numbers_, of_segments_;
  std::vector<size_t> step_numbers_;
  /// Where they begin, and whether it is what a segment has saved: among those of all others, or among `of_segments_`.
  std::vector<std::pair<size_t, bool>> tensor_numbers_;
  size_t outline_ = 0;
  size_t structure_ = 0;
  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace magneto::autograd
