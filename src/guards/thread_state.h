// What the running thread has for a contextvars.ContextVar and a threading.local.
#pragma once

#include <Python.h>

namespace magneto::guards {

/// Borrowed from the thread's context. Null: nothing is set there (a default of the variable does not count), or it is
/// no context variable.
PyObject* context_value(PyObject* variable);

/// The dict that holds the attributes of a `threading.local` (no subclass) in this thread. Borrowed from the thread;
/// one is made where there was none. Null: `object` is something else.
PyObject* thread_dict(PyObject* object);

}  // namespace magneto::guards
