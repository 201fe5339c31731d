// Runs plans, and carries user frames through their side exits.
#pragma once

#include "dispatch/context.h"
#include "python/abi/frame.h"

namespace magneto::dispatch {

/// A call of a Python function under a context: on a guard hit its plan, on a miss a capture, then the plan; side exits
/// run in real frames. `localsplus`: the bound arguments (see bind_arguments), borrowed; `args`: the same call as a
/// vectorcall, for the frames that have to be made. New reference, or null with an exception.
PyObject* run_call(Context& context, Segment& first, PyObject* function, const CodeInfo& info,
                   PyObject* const* localsplus, PyObject* const* args, size_t nargs, PyObject* kwnames);

/// Set in a step of a side exit: CPython runs the rest of the frame.
bool& leaves_frame();

/// The same for a new frame that an eval hook got: consumes the frame.
PyObject* run_frame(PyThreadState* thread, Frame* frame, Context& context);

}  // namespace magneto::dispatch
