// What libmagneto_aot.so has in place of parts of the core that need Python. The rest of it are the core's own objects
// (cmake/aot.cmake), which meet Python nowhere else.
#include <Python.h>

#include <cstdio>
#include <cstdlib>

#include "compiler/regions.h"
#include "observe/progress.h"

namespace magneto {

// Nobody looks on, and files of programs have no regions.
void runtime::Progress::tick(const char*, size_t, size_t) {}

c10::IValue compiler::compile_region(const graph::Region& region, Backend::Operators) {
  throw std::invalid_argument("the region " + region.name + " can't be compiled without Python");
}

namespace {

[[noreturn]] void no_python(const char* function) {
  std::fprintf(stderr, "libmagneto_aot: %s without Python\n", function);
  std::abort();
}

}  // namespace
}  // namespace magneto

// Graphs can hold Python's objects; those of files hold none. (cmake/aot.map: nobody else sees these.)
extern "C" {
void _Py_Dealloc(PyObject*) { magneto::no_python("_Py_Dealloc"); }
PyObject* PyLong_FromLongLong(long long) { magneto::no_python("PyLong_FromLongLong"); }
}
