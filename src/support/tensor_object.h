// PyTorch's tensors as Python objects. What <torch/csrc/autograd/python_variable.h> has inline costs every file that
// includes it ten seconds to compile; code that runs at each call includes that one, all other code this.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/core/impl/PyInterpreter.h>

namespace magneto {

/// A torch.Tensor, or of a class derived from it.
bool is_tensor_object(PyObject* object);
/// A torch.Tensor itself, or a torch.nn.Parameter.
bool is_exact_tensor_type(PyTypeObject* type);
/// The tensor that such an object is; lives as long as the object.
const at::Tensor& unpack_tensor(PyObject* object);
/// The tensor's Python object, made where it has none. New reference, or null with an exception.
PyObject* tensor_object(at::Tensor tensor);
/// The same, of that class, which is torch.Tensor or derived from it.
PyObject* tensor_object(at::Tensor tensor, PyTypeObject* type);
/// torch.Tensor. Borrowed.
PyObject* tensor_class();
/// torch.nn.Parameter. Borrowed.
PyTypeObject* parameter_class();
/// torch.Size. Borrowed.
PyTypeObject* size_class();
/// The interpreter to which PyTorch asks its objects in Python belong.
c10::impl::PyInterpreter* python_interpreter();

}  // namespace magneto
