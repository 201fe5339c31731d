// CPython's binding of call arguments to a function's parameters, without a frame.
#pragma once

#include <Python.h>

#include <cstddef>

namespace magneto {

/// Binds the arguments of a vectorcall (`kwnames`: tuple of the names of the values that follow the `nargs` positional
/// ones, or null) to the parameters of a PyFunctionObject. Fills all co_nlocalsplus slots of `localsplus`, as a new
/// frame has them before its prologue: new references to the arguments, defaults, *args tuple and **kwargs dict (cells
/// still hold raw values), null elsewhere.
///
/// False, with no exception set and nothing held in `localsplus`, where the call does not fit the signature, or where
/// comparing keywords could run Python code: the caller then calls the function for real, which raises CPython's own
/// error.
bool bind_arguments(PyObject* function, PyObject* const* args, size_t nargs, PyObject* kwnames, PyObject** localsplus);

/// Calls a PyFunctionObject with placeholders for its required arguments: for a caller that fills the frame itself.
/// New reference, or null with an exception.
PyObject* call_for_frame(PyObject* function);

}  // namespace magneto
