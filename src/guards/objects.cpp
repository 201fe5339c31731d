#include "guards/objects.h"

#include "python/abi/private.h"
#include "python/imported.h"

namespace magneto::guards {

PyTypeObject* deque_type() {
  static constinit Imported type("collections", "deque");
  return type.type();
}

Ref deque_limit(PyObject* deque) {
  PyTypeObject* type = deque_type();
  static PyObject* const name = PyUnicode_InternFromString("maxlen");
  PyObject* limit = lookup_in_type(type, name);
  return Ref::steal(Py_TYPE(limit)->tp_descr_get(limit, deque, reinterpret_cast<PyObject*>(type)));
}

PyTypeObject* namespace_type() {
  static constinit Imported type("types", "SimpleNamespace");
  return type.type();
}

namespace {

bool same_key(PyObject* a, PyObject* b) { return a == b || constants_equal(a, b); }

}  // namespace

bool has_keys(PyObject* dict, const std::vector<Ref>& keys) { return magneto::has_keys(dict, keys, same_key); }

DictEntry find_type_attribute(PyTypeObject* type, PyObject* name) {
  PyObject* mro = type->tp_mro;
  if (!mro) return {nullptr, false};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); ++i) {
    PyObject* dict = instance_dict(PyTuple_GET_ITEM(mro, i));
    if (!dict || !has_string_keys(dict)) return {nullptr, false};
  }
  return {lookup_in_type(type, name), true};
}

Py_ssize_t count_abc_registrations() {
  static constinit Imported token("_abc", "get_cache_token");
  return PyLong_AsSsize_t(checked(PyObject_CallNoArgs(token.get())).get());
}

}  // namespace magneto::guards
