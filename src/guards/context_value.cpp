#include "guards/context_value.h"

#include "python/ref.h"

namespace magneto::guards {

PyObject* context_value(PyObject* variable) {
  static PyObject* const nothing = PyBaseObject_Type.tp_alloc(&PyBaseObject_Type, 0);
  PyObject* value = nullptr;
  if (!PyContextVar_CheckExact(variable)) return nullptr;
  if (PyContextVar_Get(variable, nothing, &value) < 0) {
    PyErr_Clear();
    return nullptr;
  }
  const Ref held = Ref::steal(value);
  return value == nothing ? nullptr : value;
}

}  // namespace magneto::guards
