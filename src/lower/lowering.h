// From the functional graph to tensor expressions: which values are expressions, which are made by extern calls, which
// must be in memory.
#pragma once

#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lower/dag.h"
#include "lower/program.h"
#include "lower/rules.h"
#include "observe/stages.h"

namespace magneto::lower {

/// A node that must be in memory: `buffer` is written by the kernel that computes it.
struct Root {
  NodeId node;
  BufferId buffer;
  /// The buffer's index for each index of the node: strides in elements, and where the node's first element is.
  Sizes strides;
  Size offset;
  /// How many nodes there were when it was asked for: it is computed before the extern calls that come later.
  int32_t origin = -1;
};

/// An extern call, and where it stands among the nodes: behind all nodes below `position`.
struct ExternCall {
  int32_t node;  // of the graph
  NodeId position;
};

class Lowering {
 public:
  explicit Lowering(passes::Functional functional, Choices choices = {});

  /// Lowers all operators. Afterwards `dag`, `roots`, `externs` and the program's buffers and places are complete.
  void run();

  Dag dag;
  std::vector<Root> roots;
  std::vector<ExternCall> externs;
  LoopProgram program;
  /// The operator of the graph that made a node first, for messages; -1 for none.
  std::vector<int32_t> node_origin;
  /// Lookups in whole tensors of which tiles are read: whoever reads tiles checks the indices of the others.
  std::set<NodeId> lookups_of_tiles;
  int32_t origin_of(NodeId id) const { return static_cast<size_t>(id) < node_origin.size() ? node_origin[id] : -1; }

  // -- for rules
  // ---------------------------------------------------------------------------------------------------------
  const graph::Graph& graph() const { return program.functional.graph; }
  const graph::TensorMeta& meta(graph::ValueId id) const { return graph().values[id].meta; }
  /// The value as an expression. kNoNode if kernels don't know its dtype.
  NodeId node_of(graph::ValueId id);
  /// The value in memory: a leaf.
  NodeId leaf_of(graph::ValueId id);
  /// The values of `node` fit the narrow dtype exactly.
  bool is_rounded(NodeId node, Dtype dtype);
  void set_value(graph::ValueId id, T value);

  void assemble(graph::ValueId id, const std::vector<Piece>& pieces);
  /// The value is `base`, and what `scatter` adds to it.
  void scatter(graph::ValueId id, T base, NodeId scatter);

 private:
  bool find_rounded(NodeId node, Dtype dtype, const std::vector<bool>& known) const;
  void add(int32_t node);
  void add_view(const graph::AtenNode& node);
  void add_extern(int32_t node);
  bool try_rule(int32_t node);
  /// Puts the value (or what it is a view of) in memory. Unless it leaves, a buffer that holds the same will do.
  BufferId materialise(graph::ValueId id);
  void find_leaving();
  void find_read();
  /// `node` is a buffer that an operator or a kernel made, as a tensor of this type lies.
  bool holds(NodeId node, const graph::TensorMeta& meta) const;
  /// Elements from the first of `base` to the first of its view `id`.
  Size offset_between(graph::ValueId base, graph::ValueId id) const;
  NodeId stored(NodeId node);
  BufferId add_buffer(BufferKind kind, graph::ValueId value);
  void add_leaf(graph::ValueId id, BufferId buffer);
  void finish_outputs();

  struct Binding {
    NodeId node = kNoNode;
    /// The value that this one is a view of; itself for others.
    graph::ValueId base = graph::kNoValue;
  };
  std::vector<Binding> bindings_;
  std::unordered_map<NodeId, std::pair<NodeId, int>> stored_;  // the copy that tensors get now, and how many have it
  /// Values that somebody outside gets, or writes, or whose memory an operator hands on: they need memory of their own.
  std::vector<bool> leaves_;
  std::vector<bool> read_;  // by an operator or from outside
  /// By node, as far as it was asked for: is_rounded to bf16, to f16.
  std::vector<bool> rounded_[2];
  int32_t current_ = -1;
};

/// The expressions, where they are to be in memory, and the calls between them.
std::string print(const Lowering& lowering);

/// The whole way from a functional graph. `sink` is offered the stages.
LoopProgram lower(passes::Functional functional, graph::StageSink& sink, Choices choices = {});

}  // namespace magneto::lower
