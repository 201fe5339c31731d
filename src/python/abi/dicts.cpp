#include "python/abi/dicts.h"

#include "python/abi/paused_collector.h"
#include "python/abi/types.h"

namespace magneto {

namespace {

// The hash table of a dict, as Include/internal/pycore_dict.h has it in 3.11 to 3.13.
struct DictKeys {
  Py_ssize_t refcount;
  uint8_t log2_size;
  uint8_t log2_index_bytes;
  uint8_t kind;  // 0: any keys; otherwise all keys are exact strings
  uint32_t version;
  Py_ssize_t usable;
  Py_ssize_t entry_count;
  char indices[1];

  Py_ssize_t index(size_t position) const {
    if (log2_size < 8) return reinterpret_cast<const int8_t*>(indices)[position];
    if (log2_size < 16) return reinterpret_cast<const int16_t*>(indices)[position];
    if (log2_size < 32) return reinterpret_cast<const int32_t*>(indices)[position];
    return reinterpret_cast<const int64_t*>(indices)[position];
  }
  const void* entries() const { return indices + (size_t{1} << log2_index_bytes); }
};

struct GeneralEntry {
  Py_hash_t hash;
  PyObject* key;
  PyObject* value;
};

struct StringEntry {
  PyObject* key;
  PyObject* value;
};

const DictKeys* keys_of(PyObject* dict) {
  return reinterpret_cast<const DictKeys*>(reinterpret_cast<PyDictObject*>(dict)->ma_keys);
}

// collections.OrderedDict, as Objects/odictobject.c has it: the order is a list beside the dict.
struct OrderedNode {
  PyObject* key;
  Py_hash_t hash;
  OrderedNode* next;
  OrderedNode* previous;
};

struct OrderedDict {
  PyDictObject dict;
  OrderedNode* first;
  OrderedNode* last;
  OrderedNode** fast_nodes;
  Py_ssize_t fast_node_count;
  void* resize_sentinel;
  size_t changes;  // of the list
};

}  // namespace

// dict.popitem gives a dict a table of its own before it takes the last item, which then goes back to its place.
bool take_values_from_instance(PyObject* dict) {
  const PausedCollector paused;
  static PyObject* const filler = PyUnicode_InternFromString("__dict__");
  const bool empty = dict_length(dict) == 0;
  if (empty && PyDict_SetItem(dict, filler, Py_None) < 0) {
    PyErr_Clear();
    return false;
  }
  Ref item = Ref::steal(PyObject_CallMethod(dict, "popitem", nullptr));
  const bool back =
      item && (empty || PyDict_SetItem(dict, PyTuple_GET_ITEM(item.get(), 0), PyTuple_GET_ITEM(item.get(), 1)) == 0);
  if (!back) PyErr_Clear();
  return back && !values_lie_in_instance(reinterpret_cast<PyDictObject*>(dict));
}

PyObject* find_instance_dict(PyObject* object) {
  if (PyType_Check(object)) return type_dict(reinterpret_cast<PyTypeObject*>(object));
  const PausedCollector paused;
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict ? *dict : nullptr;
}

const void* instance_dict_place(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
    const uintptr_t* place = reinterpret_cast<uintptr_t*>(object) - 3;
    return *place && !(*place & 1) ? place : nullptr;
  }
  if (PyType_Check(object)) {
    PyObject* const& dict = reinterpret_cast<PyTypeObject*>(object)->tp_dict;
    return dict ? &dict : nullptr;  // the interpreter has those of built-in types
  }
  const PausedCollector paused;
  PyObject** place = _PyObject_GetDictPtr(object);
  return place && *place ? place : nullptr;
}

PyObject* make_instance_dict(PyObject* object) {
  PyObject* dict = instance_dict(object);
  if (dict || PyType_Check(object)) return dict;
  const PausedCollector paused;
  if (!_PyObject_GetDictPtr(object)) return nullptr;
  dict = PyObject_GenericGetDict(object, nullptr);
  if (!dict) PyErr_Clear();
  Py_XDECREF(dict);  // the object holds it
  return dict;
}

DictEntry find_item(PyObject* dict, PyObject* key, Py_hash_t hash, KeyMatch (*match)(PyObject*, PyObject*)) {
  const DictKeys* keys = keys_of(dict);
  PyObject** split = split_values(reinterpret_cast<PyDictObject*>(dict));
  size_t mask = (size_t{1} << keys->log2_size) - 1;
  size_t perturb = static_cast<size_t>(hash);
  size_t position = perturb & mask;
  for (;;) {
    Py_ssize_t index = keys->index(position);
    if (index == -1) return {};
    if (index >= 0) {
      PyObject* found;
      PyObject* value;
      Py_hash_t found_hash;
      if (keys->kind) {
        const StringEntry& entry = static_cast<const StringEntry*>(keys->entries())[index];
        found = entry.key;
        found_hash = reinterpret_cast<PyASCIIObject*>(found)->hash;
        value = split ? split[index] : entry.value;
      } else {
        const GeneralEntry& entry = static_cast<const GeneralEntry*>(keys->entries())[index];
        found = entry.key;
        found_hash = entry.hash;
        value = entry.value;
      }
      KeyMatch result = found == key ? KeyMatch::Yes : found_hash == hash ? match(found, key) : KeyMatch::No;
      if (result == KeyMatch::Yes) return {value, true};
      if (result == KeyMatch::Unknown) return {nullptr, false};
    }
    perturb >>= 5;
    position = (position * 5 + perturb + 1) & mask;
  }
}

bool has_string_keys(PyObject* dict) { return keys_of(dict)->kind != 0; }

bool has_keys(PyObject* dict, const std::vector<Ref>& keys, bool (*same)(PyObject*, PyObject*)) {
  if (dict_length(dict) != static_cast<Py_ssize_t>(keys.size())) return false;
  size_t count = 0;
  if (!order_has_version(Py_TYPE(dict))) {
    const OrderedNode* node = reinterpret_cast<OrderedDict*>(dict)->first;
    for (; node && count < keys.size(); node = node->next, ++count) {
      if (!same(node->key, keys[count].get())) return false;
    }
    return !node && count == keys.size();
  }
  Py_ssize_t position = 0;
  PyObject* key;
  while (PyDict_Next(dict, &position, &key, nullptr)) {
    if (!same(key, keys[count++].get())) return false;
  }
  return true;
}

const void* order_count_place(PyObject* ordered_dict) { return &reinterpret_cast<OrderedDict*>(ordered_dict)->changes; }

}  // namespace magneto
