// The current error as an object.
#pragma once

#include "python/imported.h"
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

/// The exception is raised once more, as it is: PyErr_SetObject would make what is handled now its context.
inline void raise_again(PyObject* exception) {
  PyErr_Restore(Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(exception))), Py_NewRef(exception),
                PyException_GetTraceback(exception));
}

/// What a tool of `magneto._debug` gave. An error of a type of ours shows the program's frames, and none of the tool's;
/// others are faults of the tool, and show where.
inline Ref checked_of_tool(PyObject* owned) {
  if (owned) return Ref::steal(owned);
  Ref error = take_error_with_traceback();
  static constinit Imported ours("magneto.exc", "MagnetoError");
  if (PyObject_TypeCheck(error.get(), ours.type())) PyException_SetTraceback(error.get(), Py_None);
  Ref type = Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(error.get())));
  PyObject* traceback = PyException_GetTraceback(error.get());
  PyErr_Restore(type.release(), error.release(), traceback);
  throw PythonError{};
}

}  // namespace magneto
