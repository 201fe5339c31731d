// What a capture is given and what it hands on.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "autograd/partition.h"
#include "capture/interpreter/interp_frame.h"
#include "fake/fake.h"
#include "graph/assumption.h"
#include "graph/graph.h"
#include "guards/guards.h"
#include "runtime/plan/plan.h"

namespace magneto::autograd {
struct Joint;
}  // namespace magneto::autograd

namespace magneto::capture {

/// What a finished capture hands to the plan builder.
struct Trace {
  std::unique_ptr<runtime::Plan> plan;
  std::unique_ptr<guards::GuardProgram> guards;
  graph::Graph graph;
  std::vector<Ref> example_inputs;         // real tensors of graph.inputs
  std::set<const CodeInfo*> codes;         // of all functions that were interpreted
  bool needs_grad = false;                 // a result requires grad
  std::shared_ptr<autograd::Joint> joint;  // ...and what its gradients are
  std::string no_joint;                    // ...or why the torch level has to run under autograd
  fake::Counters counters;
  std::vector<std::string> size_log;           // what happened to dynamic sizes, for TORCH_LOGS=dynamic
  std::string violation;                       // not empty: how the program contradicts a mark
  std::vector<graph::Assumption> assumptions;  // of an exported program
};

/// Watches a capture: it is called in front of each instruction, outside of the capture.
class Tracer {
 public:
  virtual ~Tracer() = default;
  virtual void instruction(const InterpFrame& frame) = 0;
};

/// Where a segment starts.
struct Start {
  PyObject* function;  // the function object
  const CodeInfo* info;
  int32_t instr = 0;
  PyObject* const* slots;      // localsplus, then the stack; borrowed
  int32_t depth = 0;           // stack entries
  bool prologue_done = false;  // cells are made, free variables filled
};

/// What is not a size of its own in a capture is one: dynamic=True, False, or None.
enum class Dynamic : uint8_t { Never, Marked, Automatic, Always };

/// What whoever starts a capture asks of it.
struct Options {
  /// Ends the segment after so many instructions (tests); 0: never.
  int64_t exit_every = 0;
  /// The values of small integer buffers of modules may be read, under guards.
  bool knows_buffers = true;
  /// Sizes that only the data says are captured where nothing is asked of them; nobody told to take them in any case.
  bool tries_data_sizes = false;
  /// Data-dependent bools are what they are in the call that is captured, which each run checks.
  bool assumes_bools = false;
  /// Whatever is asked of data is likewise, and noted: for a draft of an exported program.
  bool drafts = false;
  /// Results that require gradients get a joint graph.
  bool wants_backward = false;
  /// ...whose backwards are given what this says.
  autograd::PartitionWay partition;
  /// There are nearly as many captures as are kept: the segment ends where it needs what differs from run to run.
  bool exits_on_change = false;
  /// A side exit is an error.
  bool fullgraph = false;
  Tracer* tracer = nullptr;
  Dynamic dynamic = Dynamic::Never;
  /// Equal sizes are one symbol.
  bool use_duck_shape = true;
};

}  // namespace magneto::capture
