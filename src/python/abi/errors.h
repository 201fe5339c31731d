// Errors that CPython words in another way from version to version (cpython_3xx.cpp), where no call of it raises them.
#pragma once

#include <Python.h>

namespace magneto {

/// Sets the AttributeError of reading a slot of `object` that holds nothing.
void set_empty_slot_error(PyObject* object, PyObject* name);

}  // namespace magneto
