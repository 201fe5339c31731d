// CPython 3.12's layouts. Included by layout.h alone.
#pragma once

#include <Python.h>

namespace magneto {

/// The values of a dict that shares its keys with others, by the keys' places; null: they lie beside its own keys.
inline PyObject** split_values(const PyDictObject* dict) { return reinterpret_cast<PyObject**>(dict->ma_values); }

/// The values are part of an instance, which may change them behind the dict's back.
inline bool values_lie_in_instance(const PyDictObject*) { return false; }

}  // namespace magneto
