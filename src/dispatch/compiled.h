// The compiled callable: a Python object whose vectorcall goes to the plan.
#pragma once

#include <Python.h>

#include "python/ref.h"

namespace magneto::dispatch {

struct Context;
struct Report;

/// Adds CompiledFunction and CallMixin to the module. False with an error set.
bool add_types(PyObject* module);

/// A new CompiledFunction for a Python function, bound method or callable object.
PyObject* make_compiled(PyObject* callable, PyObject* options);

/// Compiles `callable` afresh, calls it once and gives what was captured on the way. Throws PythonError where the call
/// raised.
Report reported_call(PyObject* callable, PyObject* args, PyObject* kwargs, bool wants_stages = false);

bool is_compiled(PyObject* object);
/// What a CompiledFunction keeps its captures in.
Context* context_of(PyObject* compiled);

/// The backend of all compiled callables, whatever they were compiled with, or null: a name or a callable.
Ref& forced_backend();

/// Seconds of one check of the guards that the call `compiled(*args)` has just met: the least of `rounds`, between
/// which so many bytes of other memory are written. For benchmarks; throws where no capture holds.
double time_guards(PyObject* compiled, PyObject* args, Py_ssize_t rounds, size_t evicted);

}  // namespace magneto::dispatch
