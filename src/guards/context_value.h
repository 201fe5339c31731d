// What the thread's context has for a contextvars.ContextVar.
#pragma once

#include <Python.h>

namespace magneto::guards {

/// Borrowed from the context. Null: nothing is set there (a default of the variable does not count), or it is no
/// context variable.
PyObject* context_value(PyObject* variable);

}  // namespace magneto::guards
