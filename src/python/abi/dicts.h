// What we need of CPython's dicts beyond the public API: their versions, where an instance keeps its own, and a look-up
// that runs no Python code.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include "python/abi/layout.h"
#include "python/ref.h"

namespace magneto {

#if PY_VERSION_HEX < 0x030E0000  // where the dict keeps its version; it has none in layout_314.h
inline const uint64_t* dict_version_place(PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return &reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}

/// The dict's version: another one after each change, never used again, and unique over all dicts, so that an equal
/// version means equal contents of the same dict. Holds for dicts that `keeps_version` has answered for.
inline uint64_t dict_version(PyObject* dict) { return *dict_version_place(dict); }

/// Gives a dict whose values lie in an instance a table of its own; the same dict with the same order. False: no
/// memory.
bool take_values_from_instance(PyObject* dict);

/// From here on each change of the dict changes its version. From 3.13 on an attribute that is set on an instance whose
/// dict keeps its values in it does not: such a dict gets a table of its own, once and for life. False: no memory.
inline bool keeps_version(PyObject* dict) {
  return !values_lie_in_instance(reinterpret_cast<PyDictObject*>(dict)) || take_values_from_instance(dict);
}
#endif
inline Py_ssize_t dict_length(PyObject* dict) { return reinterpret_cast<PyDictObject*>(dict)->ma_used; }

/// A view of a dict (`keys()`, `values()`, `items()`; an OrderedDict's too), as its type has it.
struct DictView {
  PyObject ob_base;
  PyObject* dict;
};

PyObject* find_instance_dict(PyObject* object);

/// The instance dict of an object, null if it has none. Attributes that still live in the object itself (inline values)
/// are moved to a dict first, once; CPython does the same when it is asked for `__dict__`.
inline PyObject* instance_dict(PyObject* object) {
  // All versions keep the dict pointer of an ordinary class's instances three words in front of the object, with a null
  // there while there is none; 3.12 marks inline values by the lowest bit.
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

/// Whether two keys with the same hash are equal.
enum class KeyMatch { No, Yes, Unknown };

/// `match(found, key)`: asked for keys that are not the same object but have the same hash.
DictEntry find_item(PyObject* dict, PyObject* key, Py_hash_t hash, KeyMatch (*match)(PyObject*, PyObject*));

/// All keys of the dict are exact strings.
bool has_string_keys(PyObject* dict);

/// The dict's keys in the order of iteration, as `same(key of the dict, key)` has it.
bool has_keys(PyObject* dict, const std::vector<Ref>& keys, bool (*same)(PyObject*, PyObject*));

/// The keys of an ordered dict may change their order without a new version.
inline bool order_has_version(PyTypeObject* type) { return !PyType_IsSubtype(type, &PyODict_Type); }
/// Where an ordered dict counts the changes of its order.
const void* order_count_place(PyObject* ordered_dict);

}  // namespace magneto
