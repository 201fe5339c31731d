// Writes to objects from outside, kept back until the plan replays them.
//
// Invariant: nothing outside changes during a capture, so that it can be abandoned at any instruction. Each object that
// is written has one overlay for its attributes and one for its items, which every read asks first; they are replayed
// in the order of the objects' first writes.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// Attribute and item writes to an outside object, in order of first write.
struct Overlay {
  PyObject* object;
  bool items = false;                        // dict entries instead of attributes
  std::vector<std::pair<Ref, Ref>> entries;  // name, value (null: deleted)
  std::pair<Ref, Ref>* find(PyObject* name);
  void set(PyObject* name, PyObject* value);
  /// `in_original`: the object itself has the entry, so that replaying has something to delete.
  void erase(PyObject* name, bool in_original);
};

class Overlays {
 public:
  explicit Overlays(Capture& capture) : c(capture) {}
  Overlays(const Overlays&) = delete;

  Overlay& of(PyObject* object, bool items);
  Overlay* find(PyObject* object, bool items);
  /// The wrapped entry of an outside dict (overlay and shadow respected); null: no such key.
  Ref dict_lookup(PyObject* dict, PyObject* key);
  /// An entry of an outside dict is written; null value: deleted (it exists).
  void store_entry(PyObject* dict, PyObject* key, PyObject* value);
  const std::pair<Ref, Ref>* find_class_write(PyTypeObject* type, PyObject* name);

  std::vector<std::unique_ptr<Overlay>> all;  // in order of first write
  bool classes_written = false;
  std::set<PyObject*> class_values;  // fresh objects written to classes
  int64_t writes = 0;                // to outside objects so far

 private:
  Capture& c;
  std::unordered_map<PyObject*, Overlay*> overlay_of_[2];            // [items]
  std::vector<std::unique_ptr<std::pair<Ref, Ref>>> overlay_reads_;  // what deleted class attributes uncover
};

/// The segment has let go of something that may hold other objects, by a write or of a variable: what is referred to
/// weakly may be gone by now in eager, and is not here, where writes are kept back.
bool has_let_go(const Capture& capture);

}  // namespace magneto::capture
