// What we need of CPython's type objects beyond the public API. (cpython_3xx.cpp: what differs by minor version)
#pragma once

#include <Python.h>

namespace magneto {

/// A type's own attributes (`vars(type)` as a dict), borrowed. From 3.12 built-in types keep theirs per interpreter,
/// and `tp_dict` is null.
PyObject* type_dict(PyTypeObject* type);

/// Made by a class statement: its instances have a dict and slots as state, and what a built-in base holds.
bool is_python_class(PyTypeObject* type);

/// The class whose C code lays out the instances of `type`. Its tp_new makes one without calling any `__new__`.
PyTypeObject* layout_class(PyTypeObject* type);

/// A bound special method of C code (`(1).__add__`), as Objects/descrobject.c has it, and its type.
struct MethodWrapper {
  PyObject ob_base;
  PyObject* descriptor;
  PyObject* self;
};
PyTypeObject* method_wrapper_type();

/// typing.TypeVar and its like are C types.
extern const bool typing_variables_in_c;

}  // namespace magneto
