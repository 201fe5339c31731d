// What comes from outside: the user's own objects, and the path by which each has been read.
//
// Invariant: whatever the interpreter holds is fresh, a constant, a stand-in, or known here by its identity together
// with a source; reading it has left the guards that make the next run read the same. All that is known by address is
// kept alive.
#pragma once

#include <Python.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "guards/source.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;

class World {
 public:
  explicit World(Capture& capture) : c(capture) {}
  World(const World&) = delete;

  /// The interpreter's value for an object read from outside at `source`; leaves the guards that reading implies.
  Ref wrap(PyObject* raw, const guards::Source* source);
  /// The source of an outside object; null for fresh objects and constants.
  const guards::Source* source_of(PyObject* object) const;
  bool is_outside(PyObject* object) const { return source_of(object) != nullptr; }
  /// An object from outside with state that no guard sees; only handing it on is safe.
  bool is_opaque(PyObject* object) const;
  void keep(Ref object) { kept.push_back(std::move(object)); }
  /// The user's own object that `object` is or stands for, under a guard on its identity; a fresh object itself.
  PyObject* pinned(PyObject* object);
  /// The key as an outside dict knows it, under guards that pin it, or null: a look-up with it could run Python code.
  PyObject* original_key(PyObject* key);
  /// A cell from outside is about to be written, or handed on: it becomes an outside object itself, not only what it
  /// holds.
  void adopt_cell(PyObject* cell);
  /// The program drops a reference to an outside object. Were it the last one, and had the object a finaliser or a weak
  /// reference with a callback, that would have to run here: the segment ends.
  void check_finalizer(PyObject* dropped);
  /// Null: the cell is empty.
  Ref read_cell(PyObject* cell);
  bool is_identical(PyObject* a, PyObject* b);
  /// Objects that were different ones must stay so: tensors, instances, and containers if one of their kind is written.
  void guard_distinct();
  /// What a method of a C type is bound to.
  Ref receiver_of(PyObject* method);
  Ref resolve_bound_builtin(PyObject* method);
  void register_closure(PyObject* function, const guards::Source* source);

  std::unordered_map<PyObject*, const guards::Source*> outside;
  std::unordered_map<PyObject*, const guards::Source*> cell_contents;  // outside cell -> source of what it holds
  std::vector<Ref> kept;
  /// Objects with weak references that the program has dropped: whether they still live, only the run says.
  std::unordered_set<PyObject*> dropped_referents;

 private:
  /// Kinds of what is read from outside. (values.cpp)
  struct Kind {
    const char* name;
    Ref (World::*wrap)(PyObject* raw, const guards::Source* source);
  };
  static const Kind kKinds[];
  Ref wrap_class_value(PyObject* raw, const guards::Source* source);
  Ref wrap_scalar(PyObject* raw, const guards::Source* source);
  Ref wrap_tensor(PyObject* raw, const guards::Source* source);
  Ref wrap_known(PyObject* raw, const guards::Source* source);
  Ref wrap_constant(PyObject* raw, const guards::Source* source);
  Ref wrap_bound_builtin(PyObject* raw, const guards::Source* source);
  Ref wrap_function(PyObject* raw, const guards::Source* source);
  Ref wrap_value(PyObject* raw, const guards::Source* source);
  Ref wrap_cell(PyObject* raw, const guards::Source* source);
  Ref wrap_object(PyObject* raw, const guards::Source* source);
  Ref note(PyObject* raw, const guards::Source* source);

  Capture& c;
  std::vector<std::pair<const guards::Source*, const guards::Source*>> cell_aliases_;  // one cell, read in two ways
};

}  // namespace magneto::capture
