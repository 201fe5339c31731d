// Calls of torch: each is a node of the torch level, and operators of the graph.
//
// Invariant: a call that raises, is refused or is handed on leaves the graph as it was. Where what it raises is not all
// that the caller would see, it is noted as the last guarded one: up to it a run can be undone.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "capture/feedback.h"
#include "capture/torch/dispatch_modes.h"
#include "capture/torch/inference_region.h"
#include "capture/torch/switches.h"
#include "graph/graph.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;
struct CallArgs;
struct RedispatchedCall;

class TorchCalls {
 public:
  explicit TorchCalls(Capture& capture) : switches(capture), dispatch_modes(capture), c(capture) {}
  TorchCalls(const TorchCalls&) = delete;

  /// Runs a torch call (or any C code that may run torch operators) and records it at the torch level if it did, or
  /// `always`.
  Ref record(graph::TorchNode::Kind kind, PyObject* target, std::span<PyObject* const> args, PyObject* kwnames,
             const std::function<PyObject*()>& run, bool always = false);
  /// A class among the arguments, or a mode, says what a torch call with them means. (torch_function.cpp)
  bool is_overridden(std::span<PyObject* const> args);
  /// The interpreter's value for an entry of the thread's stack of modes.
  Ref function_mode(PyObject* mode);
  /// The graph is about to draw from the generator, or to seed it. (generators.cpp)
  void draw_from(PyObject* generator);
  Ref call_torch(PyObject* callable, const CallArgs& args);
  /// An operator of torch.profiler.record_function, while nothing records. Null: something else. (profiler_labels.cpp)
  Ref profiler_label(PyObject* callable, const CallArgs& args);
  Ref call_script_function(PyObject* function, const CallArgs& args);
  Ref make_generator(const CallArgs& args);
  /// torch.Tensor(sizes or data), and the same of torch.FloatTensor and its like. Null: another class, other arguments.
  /// (legacy_constructors.cpp)
  Ref legacy_tensor(PyTypeObject* type, const CallArgs& args);
  void check_refusal();
  graph::PyArg py_arg(PyObject* object);
  /// What an operator raises now is not all that the caller would see: a handler, or a write that is kept back, comes
  /// in between.
  bool is_guarded() const;
  /// A local variable holds the value now: if that is a result, it is called so where people read the graph.
  void name_result(PyObject* value, PyObject* variable);

  bool makes_generators = false;
  Switches switches;
  std::vector<std::shared_ptr<graph::Region>> regions;  // of the graph's operators, until it is finished
  int32_t region_calls = 0;                             // operators with regions so far
  int32_t last_guarded = -1;                            // the last node of the graph that is_guarded() was true for
  InferenceRegion inference;
  DispatchModes dispatch_modes;
  std::optional<BreakSite> cast_in_next_region;  // first, with that in which the segment began left
  bool handled_from_start = false;               // a handler waits for what the first instruction raises

  /// An operator is called with a tensor of such a class among its arguments: __torch_dispatch__ is interpreted, and
  /// its results take the arguments' place. (class_tensors.cpp)
  void call_dispatch(const c10::OperatorHandle& op, std::vector<c10::IValue>* stack);
  bool is_dispatching() const { return dispatching_; }

 private:
  Ref ask_class(PyObject* type, std::array<PyObject*, 4> args);
  /// ...which is this call. `raises`: it raises where none takes it; else it is a side exit.
  Ref call_override(const RedispatchedCall& call, bool raises);
  void collect_results(PyObject* result, std::vector<int32_t>& path, std::vector<graph::TorchResult>& results,
                       int depth);

  bool dispatched_ = false;   // in the call that is recorded, __torch_dispatch__ was called
  bool dispatching_ = false;  // ...and is interpreted

  Capture& c;
};

}  // namespace magneto::capture
