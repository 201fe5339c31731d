// Custom autograd functions.
#pragma once

#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// `cls.apply` of the C++ base, past the Python one.
Ref native_apply(PyObject* cls);

/// A function that calls the same and is a constant of the graph. Null: it closes over what the segment has made.
/// (checkpoints.cpp)
Ref constant_function(Capture& capture, PyObject* function);

}  // namespace magneto::capture
