// Functions that CPython exports for its own use, by names of ours. From 3.13 on its internal headers declare some.
#pragma once

#include <Python.h>

extern "C" {
PyObject* _PyList_Extend(PyListObject* list, PyObject* iterable);
int _PySet_Update(PyObject* set, PyObject* iterable);
int _PySet_NextEntry(PyObject* set, Py_ssize_t* position, PyObject** key, Py_hash_t* hash);
int _PyDict_MergeEx(PyObject* dict, PyObject* other, int override);
PyObject* _PyUnicode_JoinArray(PyObject* separator, PyObject* const* items, Py_ssize_t count);
#if PY_VERSION_HEX >= 0x030E0000
PyObject* _PyInterpolation_Build(PyObject* value, PyObject* text, int conversion, PyObject* format);
PyObject* _PyTemplate_Build(PyObject* strings, PyObject* interpolations);
#endif
}

namespace magneto {

/// What the class and its bases have by that name; borrowed, null without an exception: nothing.
inline PyObject* lookup_in_type(PyTypeObject* type, PyObject* name) { return _PyType_Lookup(type, name); }

/// weakref.ref.
inline PyTypeObject* weakref_type() { return &_PyWeakref_RefType; }

/// `list.extend(iterable)`, with LIST_EXTEND's errors. New reference to None.
inline PyObject* extend_list(PyObject* list, PyObject* iterable) {
  return _PyList_Extend(reinterpret_cast<PyListObject*>(list), iterable);
}

/// `set.update(iterable)`. Negative: raised.
inline int update_set(PyObject* set, PyObject* iterable) { return _PySet_Update(set, iterable); }

/// Goes through a set as PyDict_Next does through a dict; borrowed.
inline bool next_in_set(PyObject* set, Py_ssize_t* position, PyObject** key, Py_hash_t* hash) {
  return _PySet_NextEntry(set, position, key, hash) != 0;
}

/// `dict.update(other)` that refuses a key which is there already. Negative: raised.
inline int merge_into_dict(PyObject* dict, PyObject* other) { return _PyDict_MergeEx(dict, other, 2); }

/// `separator.join(items)`. New reference.
inline PyObject* join_strings(PyObject* separator, PyObject* const* items, Py_ssize_t count) {
  return _PyUnicode_JoinArray(separator, items, count);
}

#if PY_VERSION_HEX >= 0x030E0000
/// What `{text!conversion:format}` is in a t"" string (conversion: CONVERT_VALUE's, 0 for none). New reference.
inline PyObject* make_interpolation(PyObject* value, PyObject* text, int conversion, PyObject* format) {
  return _PyInterpolation_Build(value, text, conversion, format);
}

/// A t"" string, of the texts between the values, and the values. New reference.
inline PyObject* make_template(PyObject* strings, PyObject* interpolations) {
  return _PyTemplate_Build(strings, interpolations);
}
#else  // no instruction asks for them
inline PyObject* make_interpolation(PyObject*, PyObject*, int, PyObject*) { Py_UNREACHABLE(); }
inline PyObject* make_template(PyObject*, PyObject*) { Py_UNREACHABLE(); }
#endif

/// How errors about arguments name a function. New reference.
inline PyObject* function_text(PyObject* function) { return _PyObject_FunctionStr(function); }

/// After an error of iterating over the argument of `callable(*value)`: where it can't be iterated over at all, the
/// error becomes the one that CPython raises.
inline void reword_starred(PyObject* callable, PyObject* value) {
  if (Py_TYPE(value)->tp_iter || PySequence_Check(value) || !PyErr_ExceptionMatches(PyExc_TypeError)) return;
  PyErr_Clear();
  PyObject* name = function_text(callable);
  if (!name) return;
  PyErr_Format(PyExc_TypeError, "%U argument after * must be an iterable, not %.200s", name, Py_TYPE(value)->tp_name);
  Py_DECREF(name);
}

}  // namespace magneto
