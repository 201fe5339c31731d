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
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  const bool is_async = PyObject_HasAttrString(type, "__aenter__") && PyObject_HasAttrString(type, "__aexit__");
  PyErr_Format(
      PyExc_TypeError, "'%T' object does not support the context manager protocol (missed %s method)%s", object,
      has_exit ? "__enter__" : "__exit__",
      is_async ? " but it supports the asynchronous context manager protocol. Did you mean to use 'async with'?" : "");
#else
  (void)has_exit;
  PyErr_Format(PyExc_TypeError, "'%.200s' object does not support the context manager protocol%s",
               Py_TYPE(object)->tp_name, has_enter ? " (missed __exit__ method)" : "");
#endif
}

}  // namespace magneto
