// PyTorch's own translation of C++ exceptions and warnings, for the boundary between our C++ and Python.
#pragma once

#include <Python.h>
#include <c10/util/FunctionRef.h>

namespace magneto::runtime {

/// Runs `body` under PyTorch's warning handler: warnings that operators raise become Python warnings, and a C++
/// exception becomes the Python exception that eager raises (returns false then, with the error indicator set; also
/// when a warning was turned into an error). Needs the GIL; `body` may release it.
bool with_torch_errors(c10::function_ref<void()> body);

/// Runs `body`, which calls Python, with the GIL, for an operator: its PythonError goes on through PyTorch's C++ code,
/// and comes out as the Python exception that it stands for.
void with_python(c10::function_ref<void()> body);

/// Inside a catch block: sets the Python error for the exception being handled, as PyTorch's bindings would. Knows our
/// PythonError as well. Needs the GIL.
void set_python_error_like_torch();

}  // namespace magneto::runtime
