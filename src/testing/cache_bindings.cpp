// What tests reach of the cache.
#include "api/bindings.h"
#include "cache/digest.h"
#include "cache/identity.h"

namespace magneto {
namespace {

PyObject* cache_digest(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject *bytes, *key = nullptr;
    if (!PyArg_ParseTuple(args, "S|S", &bytes, &key)) return nullptr;
    const auto text = [](PyObject* object) -> std::string_view {
      return {PyBytes_AS_STRING(object), static_cast<size_t>(PyBytes_GET_SIZE(object))};
    };
    const cache::Digest digest = cache::Hasher(key ? text(key) : "").add(text(bytes)).finish();
    return PyUnicode_FromString(cache::hex(digest).c_str());
  });
}

PyObject* cache_machine(PyObject*, PyObject*) {
  return guarded([] { return PyUnicode_FromString(cache::machine().c_str()); });
}

}  // namespace

PyMethodDef cache_test_methods[] = {
    {"cache_digest", cache_digest, METH_VARARGS, "(bytes, key=b''): their BLAKE2b digest in hexadecimal."},
    {"cache_machine", cache_machine, METH_NOARGS, "What code is made for, as text."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
