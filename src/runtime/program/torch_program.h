// Runs the torch level of a graph: the user's torch calls, one by one, on real tensors under the current grad mode.
//
// For graphs whose results need gradients (autograd sees the calls as eager would make them), and for the backend
// "eager".
#pragma once

#include <memory>

#include "graph/graph.h"
#include "python/ref.h"

namespace magneto::runtime {

class TorchProgram {
 public:
  /// Compiles the torch level. Keeps what it needs: the graph may go. Throws std::invalid_argument when a call takes a
  /// value that no torch call before it makes.
  explicit TorchProgram(const graph::Graph& graph);
  ~TorchProgram();
  TorchProgram(TorchProgram&&) noexcept;

  /// Runs the calls. `inputs` are the graph's inputs in order, borrowed tensors; `outputs` has room for the graph's
  /// outputs. Needs the GIL; reentrant. Throws PythonError with what a call raised, its traceback included.
  void run(PyObject* const* inputs, Ref* outputs) const;

  size_t input_count() const;
  size_t output_count() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace magneto::runtime
