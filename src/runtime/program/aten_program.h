// Runs the ATen level of a graph on real tensors, from C++.
//
// Results, aliasing, version counters, view metadata and errors are eager's. What is saved is everything between the
// operators: no Python, no argument parsing, no autograd layer; most operators go straight to their backend kernel.
//
// Three ways to call an operator, chosen per node when the program is built:
//   direct      the backend's kernel, below everything else: functional operators, and views or writes that nobody
//               outside can observe;
//   tracked     through ADInplaceOrView, which bumps version counters and links views to their bases: memory of inputs
//               and outputs;
//   dispatched  a full dispatch below autograd and autocast. Also taken for the whole run when something unusual is
//               around: tensor subclasses, lazy conjugation, dispatch modes, a profiler.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "graph/graph.h"

namespace magneto::runtime {

class AtenProgram {
 public:
  /// Compiles the ATen level. Keeps what it needs: the graph may go. Throws std::invalid_argument for a graph that
  /// `graph::verify` finds fault with.
  explicit AtenProgram(const graph::Graph& graph);
  ~AtenProgram();
  AtenProgram(AtenProgram&&) noexcept;

  /// Runs the program. `inputs` are the graph's inputs in order, borrowed; `outputs` has room for the graph's outputs.
  /// Thread-safe and reentrant; needs no GIL (operators written in Python take it themselves). Throws what the
  /// operators throw; some outputs may be set then.
  void run(const at::Tensor* const* inputs, at::Tensor* outputs) const;

  size_t input_count() const;
  size_t output_count() const;

  /// One line per step: how it is called, its operands and what it releases.
  std::string print() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace magneto::runtime
