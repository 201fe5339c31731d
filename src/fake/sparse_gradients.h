// Sparse gradients, of embeddings that ask for them: each is one operator of ours, whose result stands in captures as a
// dense tensor of the same sizes. So nothing may read it but what accumulates the gradients.
#pragma once

#include <torch/library.h>

#include <string>

#include "graph/graph.h"

namespace magneto::fake {

/// While one lives, this thread's captures take them. Whoever makes it looks for readers when the engine has run.
class TakesSparseGradients {
 public:
  TakesSparseGradients();
  ~TakesSparseGradients();
  TakesSparseGradients(const TakesSparseGradients&) = delete;

 private:
  const bool before_;
};

bool is_sparse_gradient(const graph::Graph& graph, graph::ValueId id);
/// Why the operators from `first` on can't be run: one of them reads a sparse gradient. Empty: none does.
std::string reads_sparse_gradient(const graph::Graph& graph, size_t first);

/// Puts our kernels for them above all others.
void register_sparse_gradients(torch::Library& whole);

}  // namespace magneto::fake
