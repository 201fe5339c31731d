// Operators of the interpreted program; tensors make them torch calls.
#pragma once

#include <string_view>

#include "capture/capture.h"

namespace magneto::capture {

enum class UnaryOperator : uint8_t { Negative, Positive, Invert };

/// `index`: the argument of BINARY_OP (NB_ADD...).
Ref binary_operator(Capture& capture, int index, PyObject* left, PyObject* right);
Ref unary_operator(Capture& capture, UnaryOperator op, PyObject* value);
/// `op`: Py_LT...
Ref compare(Capture& capture, int op, PyObject* left, PyObject* right);
/// `target[mask] = source[mask]`, of which neither half can be captured alone: how many entries the mask selects, only
/// the run knows. Together they are a choice between two tensors. False: not so here, and nothing has been done.
bool assign_selected(Capture& capture, PyObject* target, PyObject* mask, PyObject* source);

/// The function of that name of the module `operator`. Owned by the caller.
PyObject* operator_function(const char* name);
/// Operands that a C operator may read: containers from outside are replaced; opaque C objects end the segment.
Ref operand(Capture& capture, PyObject* value, std::string_view name);

/// The float in a tensor of one element, which is data-dependent; nothing where that is known, or is no float.
Ref float_of_tensor(Capture& capture, PyObject* tensor);

}  // namespace magneto::capture
