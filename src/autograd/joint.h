// The backward half of a captured segment, from PyTorch's own autograd engine.
//
// The stand-ins of a capture carry real autograd history. When the capture ends, the engine is run on them, from the
// results that require gradients to the inputs that do; below autograd its operators are recorded behind those of the
// forward, as any others are. So every derivative formula is PyTorch's own, and so is what it keeps of the forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/partition.h"
#include "autograd/results.h"
#include "fake/fake.h"
#include "graph/graph.h"

namespace torch::autograd {
struct Edge;
}

namespace magneto::autograd {

/// What the backward of a graph computes, and how it is tied to the forward.
struct Backward {
  /// Inputs: the values in `saved`, then one tangent for each of `roots`. Outputs: the gradients.
  graph::Graph graph;
  /// Values of the forward graph, inputs or results, which the backward is given.
  std::vector<graph::ValueId> saved;
  /// The last of these, so many, are inputs that may be written meanwhile.
  size_t reread = 0;
  /// What only they hold of memory, and what eager's choice of them would.
  int64_t saved_bytes = 0, eager_saved_bytes = 0;
  std::set<Departure> departures;
  /// Operators of the forward that it runs again, views not among them.
  int64_t recomputed = 0;
  /// Roots of the results, by number, that have a gradient.
  std::vector<size_t> roots;
  /// By root: which of eager's nodes gives it, the oldest of them being the first.
  std::vector<size_t> nodes;
  /// Of which another consists, and that one, by position in `roots`: what the other adds to the gradient of the first
  /// is known inside alone.
  std::vector<std::pair<size_t, size_t>> inside;
  /// An input that some root leads to, or another root.
  struct Leaf {
    /// The forward graph's; none: it is a root.
    graph::ValueId input = graph::kNoValue;
    /// A result, by number of root, of which what the roots compute consists: its own backward goes on from there, so
    /// that hooks on it see its whole gradient, as in eager.
    std::optional<size_t> root = {};
    /// Position in `graph.outputs`.
    int32_t gradient = -1;
    /// The part that gives it.
    size_t part = 0;
    /// Of a DTensor, how the gradient lies on the mesh; null: as by default (LocalGradient).
    PyObject* placements = nullptr;
    /// By root: whether it leads here. Where no defined tangent leads to a leaf, the leaf has no gradient.
    std::vector<bool> reached_from;
  };
  std::vector<Leaf> leaves;
  /// Where it is cut (autograd/buckets.h): by part, where its operators end; none: it has one part.
  std::vector<size_t> ends;
};

/// Forward and backward as one graph.
struct WholeJoint {
  /// Inputs: the forward's, then one tangent for each root. Outputs, without duplicates: what is computed
  /// (`Results::computed`), then the gradients.
  graph::Graph graph;
  /// Roots of the results, by number, that have a gradient.
  std::vector<size_t> roots;
  /// As in `Backward`.
  std::vector<size_t> nodes;
  std::vector<std::pair<size_t, size_t>> inside;
  /// As in `Backward`; `gradient` is a position among the graph's outputs.
  std::vector<Backward::Leaf> leaves;
  /// How it would have been cut.
  PartitionWay way;

  /// So many of the inputs, the last.
  auto tangents() const { return static_cast<std::ptrdiff_t>(roots.size()); }
};

/// A graph with gradients.
struct Joint {
  Results results;
  /// Those of roots that others lead to stand in front of theirs. None where the whole is asked for
  /// (`PartitionWay::whole`).
  std::vector<Backward> backwards;
  std::shared_ptr<const WholeJoint> whole;
};

/// Calls `visit` for each value of the forward's that a backward reads or leads to.
void for_each_input(const Joint& joint, const std::function<void(graph::ValueId)>& visit);

/// Why there is no joint graph.
struct NoJoint {
  std::string why;
  /// It is a hook on this value, which the run would register.
  graph::ValueId hooked = graph::kNoValue;
  /// The backward reads numbers of the forward's tensors, which this computes; it may be had once the forward does.
  std::optional<graph::Graph> numbers;
};

/// Why the backward of a node written in Python, of this context, can't be run on stand-ins; empty: it can.
using WhyNot = std::function<std::string(PyObject* context)>;

/// Operators of a backward that stand, for the time being, behind the forward's in the session's graph: sizes that
/// they ask about become guards as those of the forward do.
class JointTrace {
 public:
  /// Runs the engine. `leaves`: inputs, whose gradients end at `leaf_edges`. `whole`: as one backward. Nothing: it
  /// could not be recorded, with the graph as it was and why in `*refusal`. Needs the GIL.
  static std::optional<JointTrace> run(fake::Session& session, graph::Graph& graph, Results results,
                                       const std::vector<graph::ValueId>& leaves,
                                       const std::vector<torch::autograd::Edge>& leaf_edges, bool whole,
                                       const WhyNot& why_not, NoJoint* refusal);

  /// Takes the backwards out of the graph again, which then is the forward alone: one for each set of roots that eager,
  /// too, must differentiate at once. Call it when all sizes are final.
  Joint take(const PartitionWay& way);
  /// Takes them out again, for nothing.
  void discard() { session_->rollback(forward_); }

 private:
  /// One run of the engine.
  struct Group {
    std::vector<size_t> roots;
    size_t begin = 0, end = 0;              // the operators
    std::vector<graph::ValueId> tangents;   // by root
    std::vector<graph::ValueId> gradients;  // by leaf; kNoValue: none
    std::vector<PyObject*> placements;      // by leaf, as in Backward::Leaf
  };

  JointTrace(fake::Session& session, graph::Graph& graph, Results results)
      : session_(&session), graph_(&graph), forward_(session.mark()), results_(std::move(results)) {}

  const at::Tensor& fake_of_root(size_t root) const { return results_.fake_of_root(roots_[root]); }
  Group trace_group(std::vector<size_t> roots, const std::vector<size_t>& own,
                    const std::vector<torch::autograd::Edge>& ends);
  std::vector<std::vector<size_t>> sharing(const Group& group) const;
  bool adds_sparse() const;
  graph::ValueId hidden_hook() const;
  /// Throws where the gradients can't be had after all.
  void check_groups() const;
  /// What the backward of the root raises, since a gradient that was taken inside has freed what it would need; empty:
  /// nothing. `ends`: of the leaves.
  std::string error_of(size_t root, const std::vector<torch::autograd::Edge>& ends);
  WholeJoint take_whole(const PartitionWay& way) const;
  std::vector<const Group*> inner_first() const;

  fake::Session* session_;
  graph::Graph* graph_;
  fake::Session::Mark forward_;
  Results results_;
  std::vector<size_t> roots_;                   // numbers in results_
  std::set<std::pair<size_t, size_t>> inside_;  // as in Backward, positions in roots_
  struct Leaf {
    graph::ValueId input;
    std::optional<size_t> root;  // position in roots_
  };
  std::vector<Leaf> leaves_;
  std::vector<std::vector<bool>> reaches_;  // by root and leaf
  std::vector<Group> groups_;
};

/// The backward half of a joint graph: what of the forward it reads is saved or computed again, where it is first read.
/// `backward`: roots and leaves are filled in; the rest is set.
void split(const graph::Graph& joint, const JointRange& range, const std::vector<graph::ValueId>& tangents,
           const std::vector<graph::ValueId>& gradients, const PartitionWay& way, Backward& backward);

}  // namespace magneto::autograd
