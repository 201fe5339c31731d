#include "guards/constants.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "python/abi/private.h"
#include "python/abi/sets.h"
#include "python/ref.h"
#include "support/tensor_object.h"

namespace magneto::guards {

namespace {

bool is_singleton(PyObject* object) {
  return object == Py_None || object == Py_Ellipsis || object == Py_NotImplemented;
}

/// Tells 0.0 from -0.0, and a NaN from another.
bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

/// Compares two instances of `type` or a subclass by the type's `tp_richcompare`, C code that calls nothing else.
bool plainly_equal(PyTypeObject* type, PyObject* a, PyObject* b) {
  PyObject* result = type->tp_richcompare(a, b, Py_EQ);
  bool equal = result == Py_True;
  if (result)
    Py_DECREF(result);
  else
    PyErr_Clear();
  return equal;
}

/// The numbers that a range is made of are in members of its own.
Ref range_part(PyObject* range, int which) {
  static PyObject* const names[] = {PyUnicode_InternFromString("start"), PyUnicode_InternFromString("stop"),
                                    PyUnicode_InternFromString("step")};
  return Ref::steal(PyObject_GetAttr(range, names[which]));
}

bool ranges_equal(PyObject* a, PyObject* b) {
  for (int which = 0; which < 3; ++which) {
    if (!constants_equal(range_part(a, which).get(), range_part(b, which).get())) return false;
  }
  return true;
}

bool slices_equal(PyObject* a, PyObject* b) {
  const auto* left = reinterpret_cast<PySliceObject*>(a);
  const auto* right = reinterpret_cast<PySliceObject*>(b);
  return constants_equal(left->start, right->start) && constants_equal(left->stop, right->stop) &&
         constants_equal(left->step, right->step);
}

enum class NumPy : uint8_t { No, Bool, Integer, Float };

/// NumPy's real numbers of up to 64 bits (its float64 is a float), told without its headers.
NumPy numpy_kind(PyTypeObject* type) {
  if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) return NumPy::No;
  std::string_view name = type->tp_name;
  if (!name.starts_with("numpy.")) return NumPy::No;
  name.remove_prefix(6);
  if (name == "bool" || name == "bool_") return NumPy::Bool;
  if (name == "float16" || name == "float32") return NumPy::Float;
  static constexpr std::string_view integers[] = {"int8",  "int16",  "int32",  "int64",  "longlong",
                                                  "uint8", "uint16", "uint32", "uint64", "ulonglong"};
  return std::ranges::find(integers, name) != std::end(integers) ? NumPy::Integer : NumPy::No;
}

bool numpy_numbers_equal(NumPy kind, PyObject* a, PyObject* b) {
  if (kind == NumPy::Bool) return PyObject_IsTrue(a) == PyObject_IsTrue(b);
  const auto convert = kind == NumPy::Integer ? PyNumber_Index : PyNumber_Float;
  Ref x = Ref::steal(convert(a)), y = Ref::steal(convert(b));
  if (x && y) return constants_equal(x.get(), y.get());
  PyErr_Clear();
  return false;
}

/// In the order of iteration, too: a program may see it. What a set gives up, or takes in, next depends on the places
/// of its members, and on where the last one was popped.
bool sets_equal(PyObject* a, PyObject* b) {
  if (PySet_GET_SIZE(a) != PySet_GET_SIZE(b)) return false;
  const bool changes = PySet_Check(a);
  if (changes && !same_state(a, b)) return false;
  Py_ssize_t left = 0, right = 0;
  PyObject *key, *other;
  Py_hash_t hash, other_hash;
  while (next_in_set(a, &left, &key, &hash)) {
    if (!next_in_set(b, &right, &other, &other_hash)) return false;
    if (hash != other_hash || (changes && left != right) || !constants_equal(key, other)) return false;
  }
  return true;
}

/// The comparison of `type` is C code that runs no Python code whatever it is given.
bool has_plain_comparison(PyTypeObject* type) {
  richcmpfunc compare = type->tp_richcompare;
  for (PyTypeObject* plain :
       {&PyUnicode_Type, &PyLong_Type, &PyFloat_Type, &PyComplex_Type, &PyBytes_Type, &PyBaseObject_Type}) {
    if (compare == plain->tp_richcompare) return true;
  }
  // torch.device, torch.dtype, torch.layout...: static types that hold no other objects.
  return !(type->tp_flags & Py_TPFLAGS_HEAPTYPE) && std::strncmp(type->tp_name, "torch.", 6) == 0 &&
         !PyType_FastSubclass(type, Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS);
}

KeyMatch tuples_match(PyObject* a, PyObject* b) {
  if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return KeyMatch::No;
  KeyMatch result = KeyMatch::Yes;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
    KeyMatch item = keys_match(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
    if (item == KeyMatch::No) return KeyMatch::No;
    if (item == KeyMatch::Unknown) result = KeyMatch::Unknown;
  }
  return result;
}

/// What a constant set may hold: classes too, which are equal only to themselves unless their metaclass says otherwise.
bool is_set_constant(PyObject* object) {
  return is_constant(object) ||
         (PyType_Check(object) && Py_TYPE(object)->tp_richcompare == PyBaseObject_Type.tp_richcompare &&
          Py_TYPE(object)->tp_hash == PyBaseObject_Type.tp_hash);
}

}  // namespace

/// Where a DTensor lies on one dimension of its mesh: what C++ code knows of it.
bool placements_equal(PyObject* a, PyObject* b) {
  for (const char* name : {"dim", "reduce_op"}) {
    const Ref left = Ref::steal(PyObject_GetAttrString(a, name)), right = Ref::steal(PyObject_GetAttrString(b, name));
    PyErr_Clear();
    if (!left != !right || (left && !constants_equal(left.get(), right.get()))) return false;
  }
  return true;
}

bool is_placement_type(PyTypeObject* type) {
  const std::string_view name = type->tp_name;
  if (name != "Shard" && name != "Replicate" && name != "Partial") return false;
  return type->tp_base && type->tp_base->tp_base &&
         std::string_view(type->tp_base->tp_base->tp_name).ends_with("Placement");
}

bool is_constant(PyObject* object) {
  if (is_singleton(object) || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
      PyComplex_CheckExact(object) || PyUnicode_CheckExact(object) || PyBytes_CheckExact(object)) {
    return true;
  }
  if (PyTuple_CheckExact(object)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      if (!is_constant(PyTuple_GET_ITEM(object, i))) return false;
    }
    return true;
  }
  if (PyFrozenSet_CheckExact(object)) {
    Py_ssize_t position = 0;
    PyObject* key;
    Py_hash_t hash;
    while (next_in_set(object, &position, &key, &hash)) {
      if (!is_set_constant(key)) return false;
    }
    return true;
  }
  return false;
}

bool has_value(PyObject* object) {
  if (PySlice_Check(object)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(object);
    return std::ranges::all_of(std::array{slice->start, slice->stop, slice->step},
                               [](PyObject* part) { return is_constant(part) || has_value(part); });
  }
  return PyLong_Check(object) || PyFloat_Check(object) || PyUnicode_Check(object) || PyBytes_Check(object) ||
         PyComplex_Check(object) || PyRange_Check(object) || is_placement_type(Py_TYPE(object)) ||
         numpy_kind(Py_TYPE(object)) != NumPy::No;
}

bool is_set_item(PyObject* object) {
  if (PyTuple_CheckExact(object)) {
    return std::ranges::all_of(std::span(&PyTuple_GET_ITEM(object, 0), PyTuple_GET_SIZE(object)), is_set_item);
  }
  if (PyCFunction_CheckExact(object)) {  // equal to others that are bound to the same object
    PyObject* self = PyCFunction_GET_SELF(object);
    return !self || PyModule_Check(self);
  }
  return is_constant(object) || Py_TYPE(object)->tp_richcompare == PyBaseObject_Type.tp_richcompare;
}

bool is_constant_set(PyObject* object) {
  if (!PyAnySet_Check(object)) return false;
  Py_ssize_t position = 0;
  PyObject* key;
  Py_hash_t hash;
  while (next_in_set(object, &position, &key, &hash)) {
    if (!is_set_item(key)) return false;
  }
  return true;
}

bool constants_equal(PyObject* a, PyObject* b) {
  if (a == b) return true;
  PyTypeObject* type = Py_TYPE(a);
  if (type != Py_TYPE(b)) return false;
  if (PyLong_Check(a)) return plainly_equal(&PyLong_Type, a, b);
  if (PyUnicode_Check(a)) return plainly_equal(&PyUnicode_Type, a, b);
  if (PyBytes_Check(a)) return plainly_equal(&PyBytes_Type, a, b);
  if (PyFloat_Check(a)) {
    return same_bits(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
  }
  if (PyComplex_Check(a)) {
    Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
    return same_bits(x.real, y.real) && same_bits(x.imag, y.imag);
  }
  if (type == &PyTuple_Type) {
    if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
      if (!constants_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
    }
    return true;
  }
  if (PySlice_Check(a)) return slices_equal(a, b);
  if (PyRange_Check(a)) return ranges_equal(a, b);
  if (const NumPy kind = numpy_kind(type); kind != NumPy::No) return numpy_numbers_equal(kind, a, b);
  if (is_placement_type(type)) return placements_equal(a, b);
  return PyAnySet_Check(a) && sets_equal(a, b);
}

size_t constant_hash(PyObject* object) {
  if (is_constant(object)) {
    Py_hash_t hash = PyObject_Hash(object);
    if (hash != -1) return static_cast<size_t>(hash);
    PyErr_Clear();
  }
  return std::hash<void*>()(object);
}

KeyMatch keys_match(PyObject* a, PyObject* b) {
  if (a == b) return KeyMatch::Yes;
  const auto is_tuple = [](PyObject* key) { return PyTuple_CheckExact(key) || Py_TYPE(key) == size_class(); };
  if (is_tuple(a) && is_tuple(b)) return tuples_match(a, b);
  if (PyWeakref_CheckRefExact(a) && PyWeakref_CheckRefExact(b) && PyWeakref_GET_OBJECT(a) != Py_None) {
    if (PyWeakref_GET_OBJECT(a) == PyWeakref_GET_OBJECT(b)) return KeyMatch::Yes;
  }
  // An exact tuple equals nothing that compares plainly.
  bool plain_a = is_tuple(a) || has_plain_comparison(Py_TYPE(a));
  bool plain_b = is_tuple(b) || has_plain_comparison(Py_TYPE(b));
  if (!plain_a || !plain_b) return KeyMatch::Unknown;
  PyObject* result = PyObject_RichCompare(a, b, Py_EQ);
  if (!result) {
    PyErr_Clear();
    return KeyMatch::Unknown;
  }
  KeyMatch match = result == Py_True ? KeyMatch::Yes : KeyMatch::No;
  Py_DECREF(result);
  return match;
}

}  // namespace magneto::guards
