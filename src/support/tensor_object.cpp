#include "support/tensor_object.h"

#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

namespace magneto {

bool is_tensor_object(PyObject* object) { return THPVariable_Check(object); }
bool is_exact_tensor_type(PyTypeObject* type) { return THPVariable_CheckTypeExact(type); }
const at::Tensor& unpack_tensor(PyObject* object) { return THPVariable_Unpack(object); }
PyObject* tensor_object(at::Tensor tensor) { return THPVariable_Wrap(std::move(tensor)); }
PyObject* tensor_object(at::Tensor tensor, PyTypeObject* type) {
  return THPVariable_Wrap(at::TensorBase(std::move(tensor)), type);
}
PyObject* tensor_class() { return THPVariableClass; }
PyTypeObject* parameter_class() { return reinterpret_cast<PyTypeObject*>(ParameterClass); }
PyTypeObject* size_class() { return &THPSizeType; }
c10::impl::PyInterpreter* python_interpreter() { return getPyInterpreter(); }

}  // namespace magneto
