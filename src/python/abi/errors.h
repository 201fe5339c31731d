// Errors that CPython words in another way from version to version (cpython_3xx.cpp), where no call of it raises them.
#pragma once

#include <Python.h>

namespace magneto {

/// Sets the AttributeError of reading a slot of `object` that holds nothing.
void set_empty_slot_error(PyObject* object, PyObject* name);

/// Sets the TypeError of `with object`, whose class lacks one of the two methods, or both.
inline void set_no_manager_error(PyObject* object, bool has_enter, bool has_exit) {
#if PY_VERSION_HEX >= 0x030E0000
  (void)has_enter;
  const char* missed = has_exit ? " (missed __enter__ method)" : " (missed __exit__ method)";
#else
  (void)has_exit;
  const char* missed = has_enter ? " (missed __exit__ method)" : "";
#endif
  PyErr_Format(PyExc_TypeError, "'%.200s' object does not support the context manager protocol%s",
               Py_TYPE(object)->tp_name, missed);
}

}  // namespace magneto
