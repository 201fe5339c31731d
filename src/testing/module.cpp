// The extension module `magneto._testing`: what only tests and benchmarks call. It lies in the file of `magneto._C`,
// whose state it shows, in builds for development; wheels are made without this folder.
#include "api/bindings.h"
#include "python/ref.h"

namespace magneto {
namespace {

// X(stage): src/testing/stage_bindings.cpp defines `PyMethodDef stage_test_methods[]`, ended by a null entry.
// clang-format off
#define MAGNETO_TEST_BINDINGS(X) \
  X(python) X(fake) X(guards) X(graph) X(runtime) X(dispatch) X(loops) X(lower) X(codegen) X(cache) X(shapes) \
  X(autograd) X(debug)
// clang-format on

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "magneto._testing", "What tests of the core call.", -1, nullptr};

}  // namespace

#define X(stage) extern PyMethodDef stage##_test_methods[];
MAGNETO_TEST_BINDINGS(X)
#undef X

}  // namespace magneto

PyMODINIT_FUNC PyInit__testing() {
  using namespace magneto;
  Ref module = Ref::steal(PyModule_Create(&definition));
  if (!module) return nullptr;
#define X(stage) \
  if (PyModule_AddFunctions(module.get(), stage##_test_methods) < 0) return nullptr;
  MAGNETO_TEST_BINDINGS(X)
#undef X
  return module.release();
}
