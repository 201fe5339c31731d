// NumPy's arrays in a capture.
#pragma once

#include <string>
#include <vector>

#include "capture/capture.h"

namespace magneto::capture {

/// Stands for an array, or a number, that NumPy gives at each run: a tensor over its memory, and how it is made anew.
struct ArrayStandIn {
  PyObject_HEAD PyObject* tensor;  // the fake; of a number: without dimensions; null: a view that no tensor shows
  PyObject* sample;                // one like it, whose contents mean nothing, unless it is known
  PyObject* maker;                 // maker(*parents) gives it at a run; null: it is the only parent, from outside
  PyObject* parents;               // a tuple of values of the capture
  PyObject* text;                  // of a view: how it is made of its parent, a0; else null
  bool is_number;
  bool known;    // its contents follow from constants, and are the sample's
  bool exposed;  // the tensor is another value of the capture, too
};

bool is_array_stand_in(PyObject* object);
/// Takes over the references. `maker`: borrowed, may be null.
Ref make_stand_in(Ref tensor, Ref sample, PyObject* maker, Ref parents);
/// An array like the tensor would be under `numpy()`. Null: NumPy has none.
Ref sample_like(const at::Tensor& tensor, bool writable);
bool is_writable(PyObject* array);
ArrayStandIn& stand_in_of(PyObject* object);

/// What it is made of. Borrowed.
PyObject* parent_of(const ArrayStandIn& array);
/// `tensor.numpy()`.
bool is_of_tensor(const ArrayStandIn& array);
/// The array whose memory it shows, itself if it is no view.
const ArrayStandIn& root_of(const ArrayStandIn& array);

/// NumPy has made it in the segment, and it is no view.
bool is_own(const ArrayStandIn& array);

/// A call of NumPy as text, and the arrays that it names a0, a1...
struct NumpyCall {
  std::string text;
  std::vector<Ref> arrays;
  bool filled = true;  // what it gives follows from its arrays alone
};

/// As Python reads it back; empty: it is no constant of those that calls of NumPy take.
std::string constant_text(PyObject* value);

}  // namespace magneto::capture
