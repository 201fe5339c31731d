// Custom autograd functions.
#pragma once

#include "python/ref.h"

namespace magneto::capture {

/// `cls.apply` of the C++ base, past the Python one.
Ref native_apply(PyObject* cls);

}  // namespace magneto::capture
