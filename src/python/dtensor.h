// PyTorch's DTensor, which is a class of Python's.
#pragma once

#include <Python.h>

#include <string_view>

#include "python/ref.h"

namespace magneto {

/// torch.distributed.tensor.DTensor itself. It is asked by its names: nothing is imported for it.
inline bool is_dtensor(PyTypeObject* type) {
  if (std::string_view(type->tp_name) != "DTensor") return false;
  const Ref module = Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__module__"));
  if (!module) PyErr_Clear();
  return module && PyUnicode_Check(module.get()) &&
         std::string_view(PyUnicode_AsUTF8(module.get())) == "torch.distributed.tensor";
}

}  // namespace magneto
