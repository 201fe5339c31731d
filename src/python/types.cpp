#include "python/types.h"

#include "python/imported.h"

namespace magneto {

bool is_python_class(PyTypeObject* type) {
  static constinit Imported sample("enum", "auto");
  return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type->tp_dealloc == sample.type()->tp_dealloc;
}

PyTypeObject* layout_class(PyTypeObject* type) {
  while (is_python_class(type)) type = type->tp_base;
  return type;
}

}  // namespace magneto
