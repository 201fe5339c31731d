// Built-in containers from outside, and what C code reads of them.
//
// Invariant: a container from outside is never changed. It has at most one stand-in (its *shadow*), made when C code or
// a write first needs its contents, which are guarded then; a shadow that differs from its original is dirty, and the
// plan makes the original like it. A list that is only appended to has a tail in place of a shadow.
#pragma once

#include <Python.h>

#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "guards/source.h"
#include "python/abi/frame.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// The canonical stand-in of a built-in container from outside.
struct Shadow {
  Ref original;
  Ref object;
  bool dirty = false;
};

class Containers {
 public:
  explicit Containers(Capture& capture) : c(capture) {}
  Containers(const Containers&) = delete;

  /// The object itself, or its shadow when it is a built-in container from outside: what C code may read.
  Ref resolve(PyObject* object, bool will_mutate = false);
  /// C code is about to read the value of `object`, or of what is in it (containers and iterators, so many levels
  /// deep): an opaque one ends the segment, and a container from outside is guarded with all that is in it.
  /// (c_readers.cpp)
  void refuse_opaque(PyObject* object, int depth = 0);
  /// C code is about to iterate over `value`: an iterator or view from outside ends the segment.
  void refuse_opaque_iterable(PyObject* value);
  /// What C code gets that makes an object of `value`, perhaps of its items.
  Ref iterable(PyObject* value);
  /// C code compares what is in `value`, also in containers in it: guards all of it.
  void guard_contents(PyObject* value);
  /// A container inside `value` has been changed: C code sees nested ones as they were.
  bool holds_changed(PyObject* value, int depth);
  /// The object for C code to read, and perhaps to give back: itself, or its stand-in, with stand-ins in it at all
  /// levels.
  Ref resolve_deep(PyObject* object, int depth = 0);
  /// What PyTorch may read as an argument: of a container its contents, guarded, all the way down.
  Ref readable(PyObject* argument, int depth = 0);
  bool has_shadow(PyObject* object) const { return shadows.count(object) != 0 || find_tail(object) != nullptr; }
  /// list.append. What is appended to a list from outside that nobody has read is kept apart: the list needs no guards.
  void append(PyObject* list, PyObject* item);
  /// The dict has been read or written as a dict: its entries are looked up there.
  bool is_written(PyObject* dict) const;
  bool is_shadow(PyObject* object) const { return shadow_original.count(object) != 0; }
  /// An exact dict, list or tuple with the contents of an outside instance of a subclass; but for tuples, its shadow.
  Ref contents_of(PyObject* object);
  Ref hash_of_stand_in(Frame* real) const;

  bool in_container = false;                      // what is wrapped goes into a container that C code may read
  std::set<PyObject*> members;                    // of dicts and sets: objects that these know by identity
  std::unordered_map<PyObject*, Shadow> shadows;  // by original
  std::unordered_map<PyObject*, PyObject*> shadow_original;   // shadow -> original
  std::vector<std::pair<PyObject*, std::vector<Ref>>> tails;  // list without a shadow -> what was appended

 private:
  Ref make_shadow(PyObject* original, const guards::Source* source);
  Ref stand_in_of_sequence(PyObject* original, const guards::Source* source);
  Ref stand_in_of_dict(PyObject* original, const guards::Source* source);
  Ref stand_in_of_set(PyObject* original, const guards::Source* source);
  Ref stand_in_of_deque(PyObject* original, const guards::Source* source);
  /// A dict's key or a set's item, which the guard on the container pins: what is read of it is read as of a constant.
  Ref wrap_member(PyObject* item);
  const std::vector<Ref>* find_tail(PyObject* list) const;

  Capture& c;
};

/// What is wrapped meanwhile goes into a container that C code may read.
class InContainer {
 public:
  explicit InContainer(Containers& containers) : flag_(containers.in_container), saved_(std::exchange(flag_, true)) {}
  ~InContainer() { flag_ = saved_; }

 private:
  bool& flag_;
  bool saved_;
};

}  // namespace magneto::capture
