#include "runtime/plan/torch_errors.h"

#include <torch/csrc/Exceptions.h>

#include "python/ref.h"
#include "support/gil.h"

namespace magneto::runtime {

void set_python_error_like_torch() {
  try {
    throw;
  } catch (const PythonError&) {
    // The error indicator is set already.
  } catch (python_error& error) {
    error.restore();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (pybind11::builtin_exception& error) {
    error.set_error();
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

void with_python(c10::function_ref<void()> body) {
  const WithGil gil;
  try {
    body();
  } catch (const PythonError&) {
    python_error error;
    error.persist();
    throw error;
  }
}

bool with_torch_errors(c10::function_ref<void()> body) {
  try {
    // Its destructor hands the collected warnings to Python and throws if one of them became an error.
    torch::PyWarningHandler warnings;
    try {
      body();
    } catch (...) {
      warnings.set_in_exception();
      throw;
    }
  } catch (...) {
    set_python_error_like_torch();
    return false;
  }
  return true;
}

}  // namespace magneto::runtime
