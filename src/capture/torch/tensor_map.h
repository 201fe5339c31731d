// Tensors from outside, and the fakes that stand for them.
//
// Invariant: a real tensor has one fake, which is one input of the graph with one source, whatever the paths by which
// it is read.
#pragma once

#include <Python.h>

#include <cstddef>
#include <unordered_map>

#include "graph/graph.h"
#include "guards/source.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// What the program has where the graph has an input.
struct TensorInput {
  Ref real;
  const guards::Source* source;
  bool number = false;  // `real` wraps it
  bool array = false;   // `real` lies over its memory
};

class TensorMap {
 public:
  explicit TensorMap(Capture& capture) : c(capture) {}
  TensorMap(const TensorMap&) = delete;

  /// `real`: the tensor that holds its value now.
  Ref add_number_input(const guards::Source* source, const Ref& real);
  /// The tensor is one from outside.
  bool is_input(PyObject* tensor) const;
  Ref wrap_tensor(PyObject* raw, const guards::Source* source);
  /// Inputs from `first` on, which have been taken out of the graph, become inputs again. False: one can't.
  bool add_again(size_t first);

  std::unordered_map<const guards::Source*, Ref> number_inputs;
  std::unordered_map<PyObject*, Ref> fake_of;  // real tensor -> its fake's Python object
  std::unordered_map<graph::ValueId, TensorInput> inputs;

 private:
  Capture& c;
};

}  // namespace magneto::capture
