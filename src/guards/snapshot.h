// What a passed run of the checks has read, as words of memory: while they are the same, so is the outcome.
//
// A check of a module's thousand dicts costs a hash table's chase each; that none of them changed costs one compare of
// a version word each, at an address that is known. The words are in the order of the checks, so that what an address
// lies in is known to be alive by the words in front of it: each object was reached through a reference that has just
// been compared.
//
// Two ops are not words. Some have to run each time (global state of a type, an order that has no version); a value
// that such an op loads, and that others were reached through, is pinned: it has to be the same object again. And a
// tensor's own metadata is compared by `tensor_matches`.
#pragma once

#include <Python.h>

#include <cstdint>
#include <span>
#include <vector>

#include "guards/tensor_check.h"
#include "python/ref.h"

namespace magneto::guards {

struct Op;

/// Words of memory with the values that they had, as compact as can be: a large model's snapshot is to stay in a core's
/// cache together with all that it looks at.
class Words {
 public:
  /// False: too far from the others to be one of them.
  bool add(const void* address);
  size_t size() const { return values_.size(); }
  /// Drops all but the first `count`.
  void shrink(size_t count);
  /// Those from `first` to `last` are in memory as they were.
  bool hold(size_t first, size_t last) const {
    for (size_t i = first; i < last; ++i) {
      if (origin_[places_[i]] != values_[i]) return false;
    }
    return true;
  }
  /// Those from `first` are the same words with the same values as others.
  bool equal(size_t first, const Words& other, size_t other_first, size_t other_last) const;

 private:
  const uint64_t* origin_ = nullptr;  // the first word; the others are counted from it
  std::vector<int32_t> places_;
  std::vector<uint64_t> values_;
};

/// A loaded value that has to be the same object again.
struct Pin {
  int32_t slot;
  PyObject* value;
};

/// Words to compare, an op to run behind them (-1: none), and what it has to load.
struct Stretch {
  int32_t last_word;
  int32_t op;
  int32_t last_pin;
};

struct Snapshot {
  bool valid = false;
  int32_t uses = 0;  // runs that it has answered
  Words words;
  std::vector<int32_t> ends;  // by op: where its words end
  std::vector<Pin> pins;
  std::vector<Stretch> stretches;
  SeenTensors tensors;
};

/// Collects the words that ops read.
class WordReader {
 public:
  WordReader(Words& words, const std::vector<PyObject*>& values) : words_(words), values_(values) {}

  /// Appends what the op read when it passed. `owned`: the value that it looks at (its slot, or for loads the base) is
  /// held by a dict whose version is among the words, so that no other object can have taken its place. False: the op
  /// has to run each time.
  bool read(const Op& op, bool owned) { return collect(op, owned) && all_added_; }

 private:
  bool collect(const Op& op, bool owned);
  bool add(const void* address) {
    all_added_ &= words_.add(address);
    return true;
  }
  bool add_type(PyObject* object, bool owned);
  bool add_dict_of(PyObject* object);
  bool add_version(PyObject* dict);

  Words& words_;
  const std::vector<PyObject*>& values_;
  bool all_added_ = true;
};

}  // namespace magneto::guards
