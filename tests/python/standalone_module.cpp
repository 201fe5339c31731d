// `magneto._testing` with the stage `python` alone, for build_standalone.sh.
#include <Python.h>

#include "api/bindings.h"
#include "python/bytecode/code.h"
#include "python/ref.h"

namespace magneto {

extern PyMethodDef python_test_methods[];

void set_python_error_from_current_exception() {
  try {
    throw;
  } catch (const PythonError&) {
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  }
}

namespace {
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "magneto._testing", nullptr, -1, nullptr};
}

}  // namespace magneto

PyMODINIT_FUNC PyInit__testing() {
  using namespace magneto;
  Ref module = Ref::steal(PyModule_Create(&definition));
  if (!module || PyModule_AddFunctions(module.get(), python_test_methods) < 0) return nullptr;
  try {
    init_opcodes();
  } catch (const PythonError&) {
    return nullptr;
  }
  return module.release();
}
