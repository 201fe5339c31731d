// What a run needs of its inputs where the graph takes gradients (`backward()`, torch.autograd.grad): where it is not
// so, CPython runs the segment.
#pragma once

#include <Python.h>

#include <vector>

#include "graph/graph.h"

namespace magneto::runtime {

class BackwardInside {
 public:
  BackwardInside() = default;  // there is none
  /// For what the graph's calls of backward() give gradients.
  explicit BackwardInside(const graph::Graph& graph);
  /// `leaves`: inputs that the way of the gradients ended at when it was captured.
  BackwardInside(const graph::Graph& graph, const std::vector<graph::ValueId>& leaves);

  /// Throws ComputationError where gradients would go on behind a leaf, or somebody waits for what is added to its
  /// gradient: CPython alone calls what runs then.
  void refuse(PyObject* const* inputs) const;

 private:
  void add_leaf(const graph::Graph& graph, graph::ValueId leaf);

  bool any_ = false;
  size_t inputs_ = 0;
  std::vector<size_t> leaves_;
};

}  // namespace magneto::runtime
