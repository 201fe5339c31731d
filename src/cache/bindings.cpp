// What the doctor reaches of the cache.
#include "api/bindings.h"

#include "cache/directory.h"

namespace magneto {
namespace {

PyObject* cache_directory(PyObject*, PyObject*) {
  return guarded([] { return PyUnicode_DecodeFSDefault(cache::default_directory().c_str()); });
}

}  // namespace

PyMethodDef cache_methods[] = {
    {"cache_directory", cache_directory, METH_NOARGS, "Where entries are kept when no directory is named."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
