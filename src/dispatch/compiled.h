// The compiled callable: a Python object whose vectorcall goes to the plan.
#pragma once

#include <Python.h>

namespace magneto::dispatch {

/// Adds CompiledFunction and CallMixin to the module. False with an error set.
bool add_types(PyObject* module);

/// A new CompiledFunction for a Python function, bound method or callable object.
PyObject* make_compiled(PyObject* callable, PyObject* options);

}  // namespace magneto::dispatch
