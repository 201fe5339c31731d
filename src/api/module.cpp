// The extension module `magneto._C`.
#include <Python.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "api/bindings.h"
#include "cache/claim.h"
#include "dispatch/compiled.h"
#include "python/bytecode/code.h"
#include "python/ref.h"
#include "runtime/plan/torch_errors.h"
#include "support/gil.h"

namespace magneto {

extern PyMethodDef aot_methods[];
extern PyMethodDef export_methods[];

void set_python_error_from_current_exception() {
  try {
    throw;
  } catch (const PythonError&) {
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (...) {
    runtime::set_python_error_like_torch();
  }
}

namespace {

#if defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI
#define MAGNETO_CXX11_ABI "1"
#else
#define MAGNETO_CXX11_ABI "0"
#endif

/// The PyTorch that this file was built with. magneto/_load.py finds it in the file, by its first word, before it loads
/// the file: a core of another release may crash while it is loaded.
[[gnu::used]] constexpr char kBuiltWith[] =
    "magneto-built-with version=" MAGNETO_TORCH_VERSION " git=" MAGNETO_TORCH_GIT " debug=" MAGNETO_TORCH_DEBUG
    " cxx11=" MAGNETO_CXX11_ABI;

/// While a thread waits for another process's code, the others run Python.
void sleep_without_gil(std::chrono::milliseconds time) {
  if (!PyGILState_Check()) return std::this_thread::sleep_for(time);
  const WithoutGil without;
  std::this_thread::sleep_for(time);
}

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "magneto._C", "The C++ core of Magneto.", -1, nullptr};

}  // namespace
}  // namespace magneto

PyMODINIT_FUNC PyInit__C() {
  using namespace magneto;
  Ref module = Ref::steal(PyModule_Create(&definition));
  if (!module) return nullptr;
  try {
    init_opcodes();
    cache::sleep_by(&sleep_without_gil);
  } catch (const PythonError&) {
    return nullptr;
  }
#define X(stage) \
  if (PyModule_AddFunctions(module.get(), stage##_methods) < 0) return nullptr;
  MAGNETO_BINDINGS(X)
  X(aot)
  X(export)
#undef X
  if (!dispatch::add_types(module.get())) return nullptr;
  if (PyModule_AddStringConstant(module.get(), "torch_version", MAGNETO_TORCH_VERSION) < 0) return nullptr;
  return module.release();
}
