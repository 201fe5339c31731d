// The functions that stages offer to the Python layer. One row per stage; `module.cpp` adds them all to `magneto._C`.
// What only tests and benchmarks call is in a module of its own: src/testing.
#pragma once

#include <Python.h>

namespace magneto {

// X(stage): the stage defines `PyMethodDef stage_methods[]`, ended by a null entry.
#define MAGNETO_BINDINGS(X) X(dispatch) X(codegen) X(cache) X(debug)

#define X(stage) extern PyMethodDef stage##_methods[];
MAGNETO_BINDINGS(X)
#undef X

/// Runs a binding's body; turns C++ exceptions into Python ones (PythonError: already set; std::invalid_argument:
/// ValueError; anything else: RuntimeError) and returns null then.
template <typename Body>
PyObject* guarded(Body body);

void set_python_error_from_current_exception();

template <typename Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (...) {
    set_python_error_from_current_exception();
    return nullptr;
  }
}

}  // namespace magneto
