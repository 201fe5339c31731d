// What reading and writing attributes share.
#pragma once

#include <Python.h>

namespace magneto::capture {

/// torch.nn.Module.
PyObject* torch_module_class();
/// What the class itself has under the name; null: nothing. Borrowed.
PyObject* class_entry(PyObject* type, const char* name);
/// Makes the instance dict exist (3.11 and later keep values inline until someone asks); borrowed, null: no dict.
PyObject* instance_dict_of(PyObject* object);
bool has_instance_dict(PyTypeObject* type);

/// A property, also of a class derived from it that reads as a property does.
inline bool is_property_type(PyTypeObject* type) {
  return PyType_IsSubtype(type, &PyProperty_Type) && type->tp_descr_get == PyProperty_Type.tp_descr_get;
}

}  // namespace magneto::capture
