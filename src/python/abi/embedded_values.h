// The values of dicts from CPython 3.13 on. Included by layout_3xx.h alone.
#pragma once

#include <Python.h>

#include <cstdint>

namespace magneto {

/// The values of a dict that shares its keys with others.
struct SplitValues {
  uint8_t capacity;
  uint8_t size;
  uint8_t embedded;  // they are part of an instance
  uint8_t valid;
  PyObject* values[1];
};

inline SplitValues* split_table(const PyDictObject* dict) { return reinterpret_cast<SplitValues*>(dict->ma_values); }

/// The values of a dict that shares its keys with others, by the keys' places; null: they lie beside its own keys.
inline PyObject** split_values(const PyDictObject* dict) {
  SplitValues* table = split_table(dict);
  return table ? table->values : nullptr;
}

/// The values are part of an instance. In 3.13 it may change them behind the dict's back.
inline bool values_lie_in_instance(const PyDictObject* dict) {
  const SplitValues* table = split_table(dict);
  return table && table->embedded;
}

}  // namespace magneto
