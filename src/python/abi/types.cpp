#include "python/abi/types.h"

#include "python/imported.h"

namespace magneto {

bool is_python_class(PyTypeObject* type) {
  static constinit Imported sample("enum", "auto");
  return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type->tp_dealloc == sample.type()->tp_dealloc;
}

PyTypeObject* method_wrapper_type() {
  static constinit Imported type("types", "MethodWrapperType");
  return type.type();
}

namespace {

/// A class of C code whose instances hold what those of `object` do, and are made like them: from 3.12 typing.Generic.
bool is_like_object(PyTypeObject* type) {
  const PyTypeObject& object = PyBaseObject_Type;
  return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type->tp_base == &object &&
         type->tp_basicsize == object.tp_basicsize && type->tp_itemsize == 0 && type->tp_dictoffset == 0 &&
         type->tp_weaklistoffset == 0 && type->tp_new == object.tp_new && type->tp_init == object.tp_init;
}

}  // namespace

PyTypeObject* layout_class(PyTypeObject* type) {
  while (is_python_class(type) || is_like_object(type)) type = type->tp_base;
  return type;
}

}  // namespace magneto
