// A compiled run raised and was undone: CPython runs the segment again, so that the program raises at its own line.
//
// Where nothing is raised then, the program is not to blame: an assumption that the run checks didn't hold, or code of
// ours raises what eager doesn't. To tell that from an exception that the program catches, CPython is watched the first
// time (PyEval_SetTrace sees exceptions in all frames); what was found is kept for the segment.
#pragma once

#include <Python.h>

#include <functional>

#include "dispatch/context.h"

namespace magneto::dispatch {

/// With the error of the compiled run set: counts it, clears it, and gives what `again` gives. Null with an error set:
/// what the program raised, or, under fullgraph and in strict mode, that only compiled code raised.
PyObject* run_again(Context& context, Segment& segment, const CodePlace& place,
                    const std::function<PyObject*()>& again);

/// The only tracer on this thread is that of `run_again`.
bool is_watched_rerun(PyThreadState* thread);

}  // namespace magneto::dispatch
