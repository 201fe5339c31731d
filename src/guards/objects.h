// Reading CPython objects without running Python code: instance dicts, dict entries, type attributes.
//
// All that guards know of the layout of CPython's objects is here and in objects.cpp. Valid for CPython 3.11 and 3.12.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "python/ref.h"

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030D0000
#error "guards/objects.h knows the objects of CPython 3.11 and 3.12 only"
#endif

namespace magneto::guards {

/// The dict's version: another one after each change, never used again, and unique over all dicts, so that an equal
/// version means equal contents of the same dict.
inline uint64_t dict_version(PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}

/// Where the dict keeps its version.
inline const void* dict_version_place(PyObject* dict) {
  return reinterpret_cast<char*>(dict) + offsetof(PyDictObject, ma_version_tag);
}

inline Py_ssize_t dict_length(PyObject* dict) { return reinterpret_cast<PyDictObject*>(dict)->ma_used; }

PyObject* find_instance_dict(PyObject* object);

/// The instance dict of an object, null if it has none. Attributes that still live in the object itself (inline values)
/// are moved to a dict first, once; CPython does the same when it is asked for `__dict__`.
inline PyObject* instance_dict(PyObject* object) {
  // Both versions keep the dict pointer of an ordinary class's instances three words in front of the object; 3.12
  // marks inline values by the lowest bit, 3.11 by a null here.
  if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
    auto word = reinterpret_cast<uintptr_t*>(object)[-3];
    if (word && !(word & 1)) return reinterpret_cast<PyObject*>(word);
  }
  return find_instance_dict(object);
}

/// Where the pointer to the object's instance dict is, while the object is alive; null: it has no dict now, or one that
/// is not reached by a pointer of its own.
const void* instance_dict_place(PyObject* object);

/// As `instance_dict`, but makes an empty dict for an object that may have one and has not yet.
PyObject* make_instance_dict(PyObject* object);

/// What a dict holds for a key: a value (borrowed), nothing (null), or nobody knows without running Python code.
struct DictEntry {
  PyObject* value = nullptr;
  bool known = true;
};
DictEntry find_item(PyObject* dict, PyObject* key, Py_hash_t hash);

/// The dict's keys are exactly these, in the order of iteration.
bool has_keys(PyObject* dict, const std::vector<Ref>& keys);
/// The keys of an ordered dict may change their order without a new version.
inline bool order_has_version(PyTypeObject* type) { return !PyType_IsSubtype(type, &PyODict_Type); }
/// Where an ordered dict counts the changes of its order.
const void* order_count_place(PyObject* ordered_dict);

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
