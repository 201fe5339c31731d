#include "guards/thread_state.h"

#include "python/imported.h"
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

PyObject* thread_dict(PyObject* object) {
  static constinit Imported type("_thread", "_local");
  if (Py_TYPE(object) != type.type()) return nullptr;
  const Ref dict = Ref::steal(PyObject_GetAttrString(object, "__dict__"));
  if (!dict) PyErr_Clear();
  return dict.get();
}

}  // namespace magneto::guards
