// What a program says of its own functions, and of regions that must have no break.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

namespace magneto::capture {

// Marks hold the function for the process's life; a second one replaces the first.

/// Calls become one node of the graph.
void mark_allow_in_graph(PyObject* function);
/// Calls are run once, in the capture.
void mark_constant_result(PyObject* function);
/// Calls are a side exit.
void mark_disabled(PyObject* callable);
/// A capture that comes to a call raises AssertionError.
void mark_forbidden(PyObject* callable);
/// Captures interpret the function `substitute` instead.
void mark_substituted(PyObject* callable, PyObject* substitute);

/// How many marks there have been: captures from before another one may not be what they would be now.
uint64_t marks_made();

/// errors_on_break(True) or (False) begins a region on this thread, in a capture too, errors_on_break(None) ends it.
PyObject* errors_on_break(PyObject* module, PyObject* on);

/// The regions of this thread: whether a side exit in the innermost one is an error.
class BreakRegions {
 public:
  static bool is_error();
  /// For the time of a capture: the plan's own calls repeat what it began and ended.
  BreakRegions();
  ~BreakRegions();
  BreakRegions(const BreakRegions&) = delete;

 private:
  std::vector<bool> before_;
};

}  // namespace magneto::capture
