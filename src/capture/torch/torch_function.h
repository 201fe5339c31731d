// Calls of torch that a class or a mode is handed.
#pragma once

#include <Python.h>

#include <functional>

#include "python/ref.h"

namespace magneto::capture {

/// What __torch_function__ is called with. No function: the call was not handed on; no kwargs: it is not given any.
struct RedispatchedCall {
  Ref function, types, args, kwargs;
};

/// Runs a call of torch on stand-ins. Where PyTorch would hand it on, it is stopped, `call` says what it is, and the
/// result is null, without an error.
Ref run_noting(const std::function<PyObject*()>& run, RedispatchedCall& call);

}  // namespace magneto::capture
