// NumPy's arrays: what of one a graph relies on, and the tensor over its memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <string>

#include "python/ref.h"

namespace magneto::guards {

/// An exact numpy.ndarray.
bool is_array(PyObject* object);

/// Its dtype, sizes, strides, and whether it may be written, as bytes. Null (no error set): no tensor has such memory
/// (text, another order of bytes, negative strides).
Ref layout_of(PyObject* array);

/// An array of that layout; `object` may be anything.
bool has_layout(PyObject* object, PyObject* layout);

/// "float64, size=[3], stride=[1]".
std::string layout_text(PyObject* layout);

/// The tensor over the memory of an array that has a layout. It keeps the array alive.
at::Tensor tensor_of_array(PyObject* array);

/// An array begins within the memory of the other.
bool shares_memory(PyObject* view, PyObject* of);

/// How many bytes one begins behind the other.
int64_t offset_between(PyObject* array, PyObject* other);

/// The array whose memory `tensor` lies over, where that function made its storage, and both have the same layout;
/// else null. Borrowed.
PyObject* array_under(const at::Tensor& tensor);

}  // namespace magneto::guards
