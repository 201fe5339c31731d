// Reading CPython objects without running Python code: dict entries and type attributes, compared as guards compare.
#pragma once

#include <Python.h>

#include <vector>

#include "guards/constants.h"
#include "python/abi/dicts.h"
#include "python/ref.h"

namespace magneto::guards {

inline DictEntry find_item(PyObject* dict, PyObject* key, Py_hash_t hash) {
  return magneto::find_item(dict, key, hash, keys_match);
}

/// collections.deque.
PyTypeObject* deque_type();
/// Its `maxlen`, past what a subclass has of that name.
Ref deque_limit(PyObject* deque);

/// types.SimpleNamespace.
PyTypeObject* namespace_type();

/// The dict's keys are exactly these, in the order of iteration.
bool has_keys(PyObject* dict, const std::vector<Ref>& keys);

/// `_PyType_Lookup` without Python code: unknown if a class on the way has keys that are not plain strings.
DictEntry find_type_attribute(PyTypeObject* type, PyObject* name);

/// How often a class has been registered with an abstract base class so far.
Py_ssize_t count_abc_registrations();

/// Changes with every change to the type or its bases, never used again; 0: the type has none now.
inline unsigned type_version(PyTypeObject* type) { return type->tp_version_tag; }

/// An object of this type keeps its type for life (`obj.__class__ = other` is refused).
inline bool keeps_type(PyTypeObject* type) {
  return (type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) && !PyType_IsSubtype(type, &PyModule_Type);
}

}  // namespace magneto::guards
