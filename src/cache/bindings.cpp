// What the doctor reaches of the cache.
#include "api/bindings.h"

#include "cache/artifacts.h"
#include "cache/digest.h"
#include "cache/directory.h"
#include "python/ref.h"

namespace magneto {
namespace {

PyObject* cache_directory(PyObject*, PyObject*) {
  return guarded([] { return PyUnicode_DecodeFSDefault(cache::default_directory().c_str()); });
}

Ref keys_of(const std::vector<cache::Digest>& digests) {
  Ref keys = checked(PyList_New(0));
  for (const cache::Digest& digest : digests) {
    if (PyList_Append(keys.get(), checked(PyUnicode_FromString(cache::hex(digest).c_str())).get()) < 0)
      throw PythonError{};
  }
  return keys;
}

PyObject* save_cache_artifacts(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    const cache::Artifacts artifacts = cache::pack_artifacts();
    if (artifacts.keys.empty()) Py_RETURN_NONE;
    const Ref bytes =
        checked(PyBytes_FromStringAndSize(artifacts.bytes.data(), static_cast<Py_ssize_t>(artifacts.bytes.size())));
    return PyTuple_Pack(2, bytes.get(), keys_of(artifacts.keys).get());
  });
}

PyObject* load_cache_artifacts(PyObject*, PyObject* bytes) {
  return guarded([&]() -> PyObject* {
    char* data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0) return nullptr;
    try {
      return keys_of(cache::unpack_artifacts({data, static_cast<size_t>(size)})).release();
    } catch (const cache::BadArtifacts& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
      return nullptr;
    }
  });
}

}  // namespace

PyMethodDef cache_methods[] = {
    {"save_cache_artifacts", save_cache_artifacts, METH_NOARGS,
     "(bytes, [key]): the entries that this process found or made; None where there are none."},
    {"load_cache_artifacts", load_cache_artifacts, METH_O,
     "Puts what save_cache_artifacts gave into the cache; its keys."},
    {"cache_directory", cache_directory, METH_NOARGS, "Where entries are kept when no directory is named."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
