// Python functions of PyTorch and of the standard library that CPython runs in a capture.
#pragma once

#include "capture/capture.h"

namespace magneto::capture {

/// Guards the function, and what it reads by name: functions of its module and of torch, and methods of tensors, that a
/// program may replace.
void guard_native_function(Capture& capture, PyObject* function);

/// CPython runs the function, which depends on nothing but its arguments' types and constants (functions.def: Native).
bool is_native_function(PyObject* function);

}  // namespace magneto::capture
