// NumPy in a graph: its calls as operators, tensors as its arrays.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <string>

#include "python/ref.h"

namespace magneto::runtime {

/// A call of NumPy as a function of its arrays (magneto/_numpy.py). Kept for the process's life. Borrowed.
PyObject* numpy_function(const std::string& call, size_t arrays);

/// The array whose memory the tensor lies over, if it is one that NumPy itself made; else a new one over the tensor's
/// memory.
Ref array_of_tensor(const at::Tensor& tensor);

/// The same as a C function of a tensor; the number of NumPy in a tensor of no dimension; the tensor over an array.
extern PyMethodDef kArrayOfTensor, kNumberOfTensor, kTensorOfArray;

}  // namespace magneto::runtime
