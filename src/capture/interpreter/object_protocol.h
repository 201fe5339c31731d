// Operators and built-in functions that ask an object by its class: truth, items, iteration, hashing.
//
// Invariant: a special method in Python is interpreted; one in C runs on stand-ins, with what it reads guarded.
#pragma once

#include <Python.h>

#include <optional>

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
  bool contains(PyObject* container, PyObject* key);

 private:
  struct Item {
    PyObject* container;
    PyObject* key;
    bool past_override = false;
  };
  /// Kinds of what has items. (object_protocol.cpp)
  struct ItemKind {
    const char* name;
    Ref (ObjectProtocol::*read)(const Item& item);                     // null: leaves it to the next
    bool (ObjectProtocol::*write)(const Item& item, PyObject* value);  // null value: delete
    std::optional<bool> (ObjectProtocol::*ask)(const Item& item);
  };
  static const ItemKind kItemKinds[];
  Ref read_tensor(const Item& item);
  Ref read_array(const Item& item);
  Ref read_shape(const Item& item);
  Ref read_by_method(const Item& item);
  Ref refuse_key(const Item& item);
  Ref read_dict_view(const Item& item);
  Ref read_here(const Item& item);
  Ref read_class(const Item& item);
  Ref read_dict(const Item& item);
  Ref read_place(const Item& item);
  Ref read_container(const Item& item);
  Ref read_constant(const Item& item);
  Ref read_other(const Item& item);
  bool write_tensor(const Item& item, PyObject* value);
  bool write_array(const Item& item, PyObject* value);
  bool write_by_method(const Item& item, PyObject* value);
  bool refuse_written_key(const Item& item, PyObject* value);
  bool write_dict(const Item& item, PyObject* value);
  bool write_other(const Item& item, PyObject* value);
  std::optional<bool> ask_tensor(const Item& item);
  std::optional<bool> ask_by_method(const Item& item);
  std::optional<bool> ask_dict_keys(const Item& item);
  std::optional<bool> ask_dict(const Item& item);
  std::optional<bool> ask_other(const Item& item);
  Ref missing(const Item& item, bool is_plain);

  Capture& c;
};

}  // namespace magneto::capture
