// When compiled functions run under CPython after all.
#pragma once

#include <Python.h>

namespace magneto::dispatch {

/// magneto.set_stance: what happens where no capture serves a call. The order is that of magneto/_stance.py.
enum class Stance : int64_t {
  Default,
  ForceEager,
  EagerOnRecompile,
  FailOnRecompile,
  EagerThenCompile,
  AotEagerThenCompile,
};
/// The process's.
Stance& stance();

/// True while capture and compiled code are off on this thread.
bool& disabled_on_this_thread();

/// How often a compiled callable was left to CPython, by cause.
struct EagerCalls {
  int64_t disabled = 0, stance = 0, traced = 0, dispatch_mode = 0;
};

enum class Run : uint8_t {
  Compiled,
  Eager,    // CPython runs the function, or the rest of the frame
  Refused,  // an error is set: a warning was turned into one
};

/// How this thread runs compiled functions just now. Eager if the user asked for it (disable, the stance), in a capture
/// (which interprets the original), and, counted and said once, while a tool watches that compiled code would escape: a
/// tracer each line, a dispatch mode or transform each operator. Eager ones are counted, but for those in a capture.
Run how_to_run(PyThreadState* thread, EagerCalls& counts);

}  // namespace magneto::dispatch
