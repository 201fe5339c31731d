// Rebuilds a graph node by node: what every pass that changes a graph is written with.
//
// A pass takes a graph apart, walks its operators in order and adds to a new graph what stays. Values are numbered
// anew, so that nothing unused is left. Torch-level nodes move over as they are; their tensors are renamed at the end.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "passes/passes.h"

namespace magneto::passes {

class Rewriter {
 public:
  /// Takes `old` apart: its inputs and its constants are in the new graph already, under `map`.
  explicit Rewriter(graph::Graph old);

  const graph::Graph& old() const { return old_; }
  graph::Graph& graph() { return graph_; }
  const graph::Graph& graph() const { return graph_; }
  /// The new value of an old one; kNoValue for none.
  graph::ValueId map(graph::ValueId old) const { return old == graph::kNoValue ? old : map_.at(old); }
  void set(graph::ValueId old, graph::ValueId now);
  /// The operands of an old node under `map`.
  std::vector<graph::AtenArg> map_args(const graph::AtenNode& node) const;

  /// Adds an operator with new results of these types (a result without one is absent) and returns their values.
  std::vector<graph::ValueId> add(const c10::OperatorHandle& op, std::vector<graph::AtenArg> args,
                                  const std::vector<const graph::TensorMeta*>& results, int32_t torch_node);
  /// Adds `node` as it is and maps its results.
  void copy(const graph::AtenNode& node);

  /// Ends the pass: outputs as given (new values), torch-level nodes renamed.
  graph::Graph finish(std::vector<graph::ValueId> outputs);
  /// The same, with the old outputs under `map`.
  graph::Graph finish();

 private:
  graph::Graph old_, graph_;
  std::vector<graph::ValueId> map_;
};

/// Rewrites the graph of `functional` and carries its writes and bumps over.
template <typename Body>
void rewrite(Functional& functional, Body body) {
  Rewriter out(std::move(functional.graph));
  body(out);
  for (auto& write : functional.writes) write = {out.map(write.input), out.map(write.value)};
  for (auto& bump : functional.bumps) bump.value = out.map(bump.value);
  functional.graph = out.finish();
}

/// An argument that is the same number (list, text) in all runs. Throws Unsupported for a size that differs.
const c10::IValue& constant_of(const graph::AtenArg& arg);

/// An argument that is the number 1 in all runs: a factor that changes nothing.
bool is_one(const graph::AtenArg& arg);

/// An operator by its name in PyTorch, `aten::add` and `Tensor`; throws if there is none.
c10::OperatorHandle find_op(const char* name, const char* overload = "");

}  // namespace magneto::passes
