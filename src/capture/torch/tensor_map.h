// Tensors from outside, and the fakes that stand for them.
//
// Invariant: a real tensor has one fake, which is one input of the graph with one source, whatever the paths by which
// it is read.
#pragma once

#include <Python.h>

#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "guards/source.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;
struct CallArgs;

/// What the program has where the graph has an input.
struct TensorInput {
  Ref real;
  const guards::Source* source;
  bool number = false;  // `real` wraps it
  bool array = false;   // `real` lies over its memory
};

/// A tensor whose class says itself what operators do with it (__torch_dispatch__), and that has no data but what hangs
/// on it: no value of the graph. (class_tensors.cpp)
struct ClassTensor {
  Ref stand_in;
  Ref real;  // null: the segment has made it
  const guards::Source* source = nullptr;
  Ref args, kwargs;  // with which the segment made it
};

/// A module's own few numbers: a counter, a stride, whether it is initialised.
bool is_small_buffer(const guards::Source& source, const at::Tensor& tensor);

class TensorMap {
 public:
  explicit TensorMap(Capture& capture) : c(capture) {}
  TensorMap(const TensorMap&) = delete;

  /// `real`: the tensor that holds its value now.
  Ref add_number_input(const guards::Source* source, const Ref& real);
  /// The tensor is one from outside.
  bool is_input(PyObject* tensor) const;
  Ref wrap_tensor(PyObject* raw, const guards::Source* source);
  /// Null: it has data, or its class nothing to say.
  Ref wrap_class_tensor(PyObject* raw, const guards::Source* source);
  /// torch.Tensor._make_wrapper_subclass.
  Ref make_class_tensor(const CallArgs& args);
  /// What values() of the jagged tensor, which the segment has made, gives.
  Ref values_with_history(PyObject* jagged);
  /// The function that tells a tensor's nested int. (nested_ints.cpp)
  Ref nested_int(PyObject* function, const CallArgs& args);
  /// What the tensor stands for, and how that is read. Nulls: the segment has made it.
  std::pair<PyObject*, const guards::Source*> original(PyObject* tensor) const;
  /// A plain tensor that copy.deepcopy may copy by an operator: it fills memory in which no other lies that the segment
  /// copies so with this memo. (copied_tensors.cpp)
  bool is_copied_alone(PyObject* tensor, PyObject* memo);
  /// Inputs from `first` on, which have been taken out of the graph, become inputs again. False: one can't.
  bool add_again(size_t first);

  std::unordered_map<const guards::Source*, Ref> number_inputs;
  std::unordered_map<PyObject*, Ref> fake_of;  // real tensor -> its fake's Python object
  std::unordered_map<graph::ValueId, TensorInput> inputs;
  std::unordered_map<PyObject*, ClassTensor> of_classes;  // by stand-in
  /// By their ids: what tells one of a tensor, and the tensor.
  std::unordered_map<int64_t, std::pair<Ref, Ref>> nested_ints;

 private:
  void fill_nested_sizes(PyObject* raw);
  bool guard_memory(PyObject* real, const guards::Source* source);

  std::vector<std::pair<Ref, Ref>> copied_;              // memos, and what is_copied_alone has said yes to
  std::vector<const guards::Source*> in_copied_memory_;  // whose memory each run looks at
  const guards::Source* copied_memory_ = nullptr;        // the last of those checks
  Capture& c;
};

}  // namespace magneto::capture
