// Calls that the segment's end makes: of functions that the user allows to be put off.
//
// Invariant: each run makes them in the program's order, with arguments as they are when the program makes the call.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "capture/calls/context_variables.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;
struct CallArgs;

struct DeferredCall {
  Ref function;
  std::vector<Ref> args;
  std::vector<int64_t> versions;              // of the tensors among them, when it was made
  static constexpr int64_t kAnyVersion = -1;  // their data is not looked at
  Ref result = {};                            // what stands for what it gives
};

class DeferredCalls {
 public:
  explicit DeferredCalls(Capture& capture) : contexts(capture), c(capture) {}
  DeferredCalls(const DeferredCalls&) = delete;

  /// The call may be put off to the segment's end; then: puts it off. Null: not with these arguments.
  bool defers(PyObject* callable, const CallArgs& args);
  Ref defer(PyObject* callable, const CallArgs& args);
  /// Each run calls the function at the segment's end, in the order of these.
  void call_at_end(Ref function) { calls.push_back({std::move(function), {}, {}}); }

  std::vector<DeferredCall> calls;
  ContextVariables contexts;

 private:
  Capture& c;
};

}  // namespace magneto::capture
