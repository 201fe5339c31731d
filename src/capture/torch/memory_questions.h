// Where tensors lie, and whether they share memory.
#pragma once

#include <Python.h>

#include "guards/source.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// Autograd knows the tensor as a view of another: of one from outside under a guard.
bool is_view(Capture& c, PyObject* tensor);
/// How many bytes the storage of a tensor has. Of one from outside under a guard.
Ref storage_bytes(Capture& c, PyObject* tensor);
/// `a == b`, `a != b` of two addresses, `a % 16` of one. All else ends the segment.
Ref address_operation(Capture& c, guards::Arithmetic operation, PyObject* left, PyObject* right);

}  // namespace magneto::capture
