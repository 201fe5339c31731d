// One capture: a segment of a user's frame, interpreted on real objects.
//
// The interpreter executes the function's own bytecode. Values are plain `PyObject*`: tensors are fakes, objects made
// during the capture are real and fresh, and objects from outside are the user's own. What is known of an outside
// object hangs on its identity: its source, its overlay (attribute writes kept back), its shadow (the canonical
// stand-in of a built-in container). Nothing outside changes during a capture, so it can be abandoned at any
// instruction.
//
// Control flow inside the capture uses C++ exceptions:
//   PythonError  the interpreted program raised; handled by the frame's exception table
//   SideExit     the segment ends here; `exit` holds the frames' state
//   Restart      a break was found where frames can't be cut (inside a callback of C code): `known_breaks` has the
//                call site, and the segment is captured again, to end in front of it
//   Retry        the segment's memory has grown, and it is captured again
//   Abandon      the segment can't be captured; CPython runs it
//   Interrupted  Ctrl-C while capturing: the capture is dropped, and the current error is the interrupt
//
// What is known meanwhile has its owners, the parts of a capture: each is a class of its own, whose header states what
// it holds true. A part reaches the others through the capture (`c.world.wrap(...)`).
#pragma once

#include <Python.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capture/breaks.h"
#include "capture/calls/call_args.h"
#include "capture/exits/control_flow.h"
#include "capture/feedback.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/kinds.h"
#include "capture/trace.h"
#include "fake/fake.h"
#include "graph/graph.h"
#include "guards/guards.h"
#include "guards/source.h"
#include "python/ref.h"

namespace magneto::capture {

class Attributes;
class Callbacks;
class Calls;
class Containers;
class DeferredCalls;
class Errors;
class ExitBuilder;
class Frames;
class Gradients;
class MaskLoops;
class Numbers;
class NumpyCapture;
class ObjectProtocol;
class Overlays;
class Strings;
class Symbols;
class TensorMap;
class TorchCalls;
class World;
struct NativeMode;

/// The set of functions whose calls may be put off to the segment's end. (deferred.cpp)
void set_reorderable_functions(PyObject* functions);

/// The parts of a capture.
struct Parts {
  World& world;              // objects from outside, and their sources
  Containers& containers;    // built-in containers from outside, and their stand-ins
  Overlays& overlays;        // writes kept back
  Attributes& attributes;    // look-ups and writes of attributes
  TensorMap& tensors;        // tensors from outside, and their fakes
  Symbols& symbols;          // sizes, and numbers that the data say
  Numbers& numbers;          // numbers that differ from run to run
  Strings& strings;          // strings that depend on data
  NumpyCapture& numpy;       // operations of NumPy
  NativeMode& mode;          // what native code may do now
  Calls& calls;              // calls of the program
  Callbacks& callbacks;      // calls that C code makes
  ObjectProtocol& protocol;  // truth, items, iteration
  DeferredCalls& deferred;   // calls put off to the segment's end
  TorchCalls& torch;         // calls of torch
  Gradients& gradients;      // custom functions, checkpoints, backwards
  MaskLoops& mask_loops;     // loops over the places where a mask holds
  Frames& frames;            // the interpreted frames
  Errors& errors;            // exceptions and interrupts
  ExitBuilder& exits;        // the segment's end
};

class Capture : public Parts {
 public:
  Capture(const Start& start, const KnownBreaks& known_breaks, SpecializationFeedback& feedback);
  ~Capture();
  Capture(const Capture&) = delete;

  /// Runs the segment to its return or side exit. Throws Restart, Abandon, or PythonError when the program itself
  /// raises out of the frame.
  Trace run();

  /// The capture running on this thread, or null.
  static Capture* current();

  // -- what is known of it, however it ends ---------------------------------------------------------------------------
  /// Notes the user's line beside each guard.
  void note_guard_places();
  /// Where the capture was when an exception of the program or an error of ours left it: the interpreted frames,
  /// outermost first.
  const std::vector<CodePlace>& site() const;
  /// The break that a Restart is for.
  const std::pair<BreakSite, KnownBreak>& restart() const;
  /// The exception of an Interrupted.
  Ref take_interrupt();
  std::shared_ptr<const int64_t> alive_fakes() const { return alive_fakes_; }
  /// The program has asked whether it is being compiled, and heard that it is.
  bool has_said_compiling() const;

  // -- for its parts --------------------------------------------------------------------------------------------------
  [[noreturn]] void side_exit(BreakReason reason, std::string message);
  [[noreturn]] void abandon(BreakReason reason, std::string message);
  /// Calls the user's `callback` with a view of the capture, as it is at this instruction. (comptime.cpp)
  Ref comptime(PyObject* callback);
  /// As if there were no capture.
  void run_suspended(const std::function<void()>& run);
  /// What the thread had when the segment began: the exception being handled, and its torch function modes.
  PyObject* start_handled() const;
  const std::vector<PyObject*>& modes_at_start() const;

  Options options;
  graph::Graph graph;
  guards::SourceTable sources;
  guards::GuardSet guards;
  std::unique_ptr<fake::Session> session;
  InterpFrame* frame = nullptr;  // the innermost frame
  const KnownBreaks& known_breaks;
  SpecializationFeedback& feedback;
  const bool resumed;  // behind a side exit
  guards::GlobalState start_state;
  std::vector<graph::Assumption> assumptions;  // of an exported program

 private:
  struct Storage;
  struct ThreadState;
  class Suspended;
  Capture(std::unique_ptr<Storage> storage, const Start& start, const KnownBreaks& known_breaks,
          SpecializationFeedback& feedback);
  void start_at(const Start& start);
  Trace finish(const Ref& result);

  std::unique_ptr<Storage> storage_;  // of the parts
  std::unique_ptr<ThreadState> thread_state_;
  std::shared_ptr<const int64_t> alive_fakes_;
};

/// The continuation of a call made by the current frame's instruction is not "push the result" for this scope.
class NonResumable {
 public:
  explicit NonResumable(Capture& capture)
      : frame_(capture.frame), saved_(std::exchange(capture.frame->result_is_pushed, false)) {}
  ~NonResumable() { frame_->result_is_pushed = saved_; }

 private:
  InterpFrame* frame_;
  bool saved_;
};

}  // namespace magneto::capture
