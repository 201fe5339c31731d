// The functions that each stage offers to the Python layer and to the tests. One row per stage; `module.cpp` adds them
// all to `magneto._C`.
#pragma once

#include <Python.h>

namespace magneto {

// X(stage): the stage defines `PyMethodDef stage_methods[]`, ended by a null entry.
#define MAGNETO_BINDINGS(X) \
  X(python)                 \
  X(fake) X(guards) X(graph) X(runtime) X(dispatch) X(loops) X(lower) X(codegen) X(cache) X(shapes) X(autograd) X(debug)

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
