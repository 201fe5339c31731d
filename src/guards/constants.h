// Comparing Python objects without running Python code: constants by value, dict keys as a dict would.
#pragma once

#include <Python.h>

#include <cstddef>

#include "python/abi/dicts.h"

namespace magneto::guards {

/// None, Ellipsis, NotImplemented, bool, int, float, complex, str, bytes, and tuples and frozensets of those; exact
/// types only.
bool is_constant(PyObject* object);

/// A constant, an object that is equal to itself alone, or a tuple of such.
bool is_set_item(PyObject* object);

/// A set or frozenset of such items, also of a subclass: compared item by item, in the order of iteration.
bool is_constant_set(PyObject* object);

/// Shard, Replicate or Partial of torch.distributed.tensor, which don't change.
bool is_placement_type(PyTypeObject* type);

/// An int, float, complex, str or bytes, also of a subclass, a real number of NumPy, a range, or a slice of such:
/// immutable, and comparable without running Python code.
bool has_value(PyObject* object);

/// Both are constants or values of the same type and value, floats bit for bit; or one and the same object.
bool constants_equal(PyObject* a, PyObject* b);

/// A hash under which equal constants agree (nan apart); other objects hash by address.
size_t constant_hash(PyObject* object);

/// Whether a dict takes `a` and `b`, whose hashes agree, for the same key. Unknown when only Python code could tell.
KeyMatch keys_match(PyObject* a, PyObject* b);

}  // namespace magneto::guards
