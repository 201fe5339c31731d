#include "support/tensor_object.h"

#include <torch/csrc/autograd/python_variable.h>

namespace magneto {

bool is_tensor_object(PyObject* object) { return THPVariable_Check(object); }
bool is_exact_tensor_type(PyTypeObject* type) { return THPVariable_CheckTypeExact(type); }
const at::Tensor& unpack_tensor(PyObject* object) { return THPVariable_Unpack(object); }
PyObject* tensor_object(at::Tensor tensor) { return THPVariable_Wrap(std::move(tensor)); }
PyObject* tensor_object(at::Tensor tensor, PyTypeObject* type) { return THPVariable_Wrap(std::move(tensor), type); }
PyObject* tensor_class() { return THPVariableClass; }

}  // namespace magneto
