// The current error as an object.
#pragma once

#include "python/ref.h"

namespace magneto {

/// The current error as an exception object that has its traceback; clears it.
inline Ref take_error_with_traceback() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref::steal(value);
}

}  // namespace magneto
