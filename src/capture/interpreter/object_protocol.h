// Operators and built-in functions that ask an object by its class: truth, items, iteration, hashing.
//
// Invariant: a special method in Python is interpreted; one in C runs on stand-ins, with what it reads guarded.
#pragma once

#include <Python.h>

#include "python/ref.h"

namespace magneto::capture {

class Capture;

class ObjectProtocol {
 public:
  explicit ObjectProtocol(Capture& capture) : c(capture) {}
  ObjectProtocol(const ObjectProtocol&) = delete;

  /// A key that can't be hashed raises; a `__hash__` in Python is interpreted.
  void check_hashable(PyObject* key);
  bool truth(PyObject* value);
  /// The same where the program raises otherwise (`assert`): a tensor that is not known becomes a check in the graph.
  /// If that fails, the run is undone, and CPython raises what is to be raised.
  bool assume_true(PyObject* value);
  Ref iterate(PyObject* value);
  /// All items of an iterable, as a fresh list.
  Ref list_of(PyObject* iterable);
  /// container[key]; `past_override`: as dict.__getitem__ does it.
  Ref subscript(PyObject* container, PyObject* key, bool past_override = false);
  void store_subscript(PyObject* container, PyObject* key, PyObject* value);  // null value: delete
  bool contains(PyObject* container, PyObject* item);

 private:
  Capture& c;
};

}  // namespace magneto::capture
