// What people are told of a compile that did not go as they may think: graph breaks, recompiles, limits, failures. All
// is counted (observe/history.h); what repeats is said once. The texts are worded in magneto/_messages.py.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

#include "capture/capture.h"
#include "dispatch/context.h"
#include "guards/failure.h"

namespace magneto::dispatch {

/// A segment ends in a side exit.
void report_exit(Context& context, const runtime::Exit& exit);
/// The graph break in words, as logs and fullgraph errors show it.
std::string break_text(const runtime::Exit& exit);

/// Why a segment is left to CPython.
struct Failure {
  std::string cause;             // as stats()["fallbacks"] counts it
  std::string message;           // what is wrong
  std::string stage = {};        // the stage of the compile; empty: it is of no importance
  std::vector<CodePlace> stack;  // where the program was, outermost first
  std::string graph = {};        // what was captured, if the failure came later
  Ref exception = {};            // of a backend
};
/// A capture failed by our own fault, or a backend raised: visible, counted, an error where the user asked for one.
void fall_back(Context& context, Segment& segment, const CodePlace& place, const Failure& failure);

/// A limit on captures is reached.
void report_limit(Segment& segment, const CodePlace& place, const char* setting, int64_t limit,
                  const std::string& detail);

/// A guard that fails, of a segment that begins there, and the user's line that needed it as a second line.
std::string failure_text(const CodePlace& start, const guards::Failure& failure, int indent);
/// Why none of the entries serves: "    - 0/0: tensor 'L['x']' size mismatch..." a line.
std::string failed_guards(const Segment& segment, const CodePlace& start, const guards::Roots& roots);
/// TORCH_LOGS=dynamic, of a segment that begins there. What a variable TORCHDYNAMO_EXTENDED_DEBUG_... has asked for,
/// with stacks, is shown in any case.
void report_sizes(const CodePlace& start, const std::vector<std::string>& lines);
/// A segment is captured again.
void report_recompile(const Context& context, const Segment& segment, const CodePlace& place,
                      const guards::Roots& roots);

/// The program raises in a capture, and CPython runs the segment, to raise there: told with graph breaks, once a place.
void report_raised(const std::vector<CodePlace>& stack, const std::string& error);
/// After a reset, what is said once is said again.
void forget_what_was_said();
/// Why a frame is skipped while config.debug_function has a name.
inline constexpr char kNotNamed[] = "config.debug_function names another function";
/// A frame is not captured by itself: counted, and a line of the log the first time.
void report_skipped(const CodePlace& place, const char* why);
/// Backends run the operators one by one after all: counted, and said once for each cause, whatever warnings are turned
/// into. `place`: as `place_text` gives it.
void report_uncompiled(const std::string& place, const std::string& cause);
/// The same of a graph with gradients whose torch calls run one by one, under autograd.
void report_no_joint(const CodePlace& start, const std::string& cause);

/// Compiled autograd leaves a backward, or the rest of it, to PyTorch's engine: said once for each cause.
void report_eager_backward(const std::string& cause);
/// TORCH_LOGS=dynamic, of a backward that it has captured.
void report_backward_sizes(const std::vector<std::string>& lines);

/// What backwards are given was chosen otherwise than asked: counted, and said once for each cause.
void report_partition(const std::string& place, autograd::Departure departure);

/// Of so many kernels some would have been too large to compile, and so many expressions are computed elsewhere: said
/// once, where these are more than a few.
void report_cut(const std::string& place, int64_t expressions, int64_t kernels);

/// A run of compiled code raised and was undone, and CPython ran the segment: counted and logged.
void report_undone(const CodePlace& place, PyObject* raised, Fault fault);
/// CPython did not raise: said once. False, with an error set: the user wants an error where we are to blame.
/// `called_at`: (code, line) of the operator's call, if it was an operator that broke a promise.
bool allow_undone(const Context& context, const CodePlace& place, PyObject* raised, Fault fault,
                  const std::pair<Ref, int>& called_at);

}  // namespace magneto::dispatch
