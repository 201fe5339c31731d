// Exceptions: the program's own, those that pass C code, and interrupts.
//
// Invariant: what was thrown under C code (`sticky`) is thrown again before anything else of the program runs;
// tracebacks have frames of ours alone, which hold no values; an interrupt from outside is never the program's.
#pragma once

#include <Python.h>

#include <exception>
#include <set>

#include "python/ref.h"

namespace magneto::capture {

class Capture;
struct InterpFrame;

class Errors {
 public:
  explicit Errors(Capture& capture) : c(capture) {}
  Errors(const Errors&) = delete;

  /// `thrown` is to be thrown, but C code stands in between: it gets a Python error to hand on. Null.
  PyObject* interrupt_c_code(std::exception_ptr thrown);
  /// The exception being handled, as PUSH_EXC_INFO puts it on the stack: `handled_at_start_` stands for what the thread
  /// handles when the segment begins (mostly nothing), which differs between runs.
  Ref handled_exception();
  void set_handled_exception(PyObject* exception);
  void add_traceback(const InterpFrame& f);
  /// The current error, raised by the frame's instruction, is no Ctrl-C; throws Interrupted if it is.
  void check_interrupt();
  /// The current error may be an operator's, of a data-dependent size. Not so that of a `raise` of the
  /// program, here or in a function called: what questions of the data led there are guarded or checked.
  bool may_be_of_data();
  /// Runs the handlers of signals that have arrived, outside of the capture.
  void handle_signals();
  void check_sticky();

  Ref handled_at_start;
  Ref interrupt;              // one that came from outside
  std::exception_ptr sticky;  // what a callback threw; rethrown after the C call, or the instruction

 private:
  Capture& c;
  std::set<PyObject*> tracebacks_;  // made by us; kept_ has them
  Ref of_statement_;                // the last exception that a `raise` has raised
  Ref program_interrupt_;           // a KeyboardInterrupt that the program itself raised
};

}  // namespace magneto::capture
