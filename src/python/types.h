// What we need of CPython's type objects beyond the public API; one definition per minor version.
#pragma once

#include <Python.h>

namespace magneto {

/// A type's own attributes (`vars(type)` as a dict), borrowed. From 3.12 built-in types keep theirs per interpreter,
/// and `tp_dict` is null.
PyObject* type_dict(PyTypeObject* type);

/// typing.TypeVar and its like are C types.
extern const bool typing_variables_in_c;

}  // namespace magneto
