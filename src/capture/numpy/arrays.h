// NumPy's arrays in a capture.
#pragma once

#include <string>
#include <vector>

#include "capture/capture.h"

namespace magneto::capture {

/// Stands for an array, or a number, that NumPy gives at each run: a tensor over its memory, and how it is made anew.
struct ArrayStandIn {
  PyObject_HEAD PyObject* tensor;  // the fake; of a number: without dimensions
  PyObject* sample;                // one like it, whose contents mean nothing
  PyObject* maker;                 // maker(*parents) gives it at a run; null: it is the only parent, from outside
  PyObject* parents;               // a tuple of values of the capture
  bool is_number;
  bool exposed;  // the tensor is another value of the capture, too
};

bool is_array_stand_in(PyObject* object);
/// Takes over the references. `maker`: borrowed, may be null.
Ref make_stand_in(Ref tensor, Ref sample, PyObject* maker, Ref parents);
/// An array like the tensor would be under `numpy()`. Null: NumPy has none.
Ref sample_like(const at::Tensor& tensor, bool writable);
bool is_writable(PyObject* array);
ArrayStandIn& stand_in_of(PyObject* object);

/// A call of NumPy as text, and the arrays that it names a0, a1...
struct NumpyCall {
  std::string text;
  std::vector<Ref> arrays;
};

}  // namespace magneto::capture
