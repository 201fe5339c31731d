// Classes made without the hooks that CPython calls while it makes one.
#pragma once

#include <Python.h>

#include "python/ref.h"

namespace magneto {

/// The function that C code calls, for a hook that a class has (a function or a classmethod of one); null: no Python
/// function. Borrowed.
PyObject* function_of_hook(PyObject* hook);

/// type.__new__(metaclass, name, bases, names) that calls none of the Python functions that are `__set_name__` of a
/// value or `__init_subclass__` of a base. Null: raised.
Ref quiet_class(PyTypeObject* metaclass, PyObject* name, PyObject* bases, PyObject* names);

}  // namespace magneto
