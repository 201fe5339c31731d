// What a guard program is made of beside its operations: the values and the tables that these refer to. Each part knows
// what holds among its own numbers, and how a copy of the program has it.
#pragma once

#include <Python.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "guards/checks.h"
#include "guards/objects.h"
#include "guards/op.h"
#include "guards/tensor_check.h"

namespace magneto::guards {

/// Where the last run failed.
struct LastFailure {
  const Op* op = nullptr;
  int32_t entry = -1;
  bool unknown = false;  // the entry's key could not be compared without Python code
  int32_t check = -1;
  int32_t slots[2] = {-1, -1};  // two that hold one object
};

/// The values that a program reads, by slot; bases come before what is read from them.
struct Slots {
  static constexpr int32_t kConstant = -2;

  Slots() = default;
  /// The same sources, with nothing loaded.
  Slots(const Slots& other);

  int32_t count() const { return static_cast<int32_t>(sources.size()); }
  /// -1: the program does not read it.
  int32_t of(const Source* source) const {
    const auto id = static_cast<size_t>(source->id);
    return id < by_source.size() ? by_source[id] : -1;
  }
  /// The program's own copy of a source that it reads.
  const Source* own(const Source* source) const { return source ? &sources[of(source)] : nullptr; }
  /// The sources are there: room for their values.
  void resize();

  std::vector<PyObject*> values;   // borrowed
  std::vector<Ref> computed;       // what LoadNumber, LoadSize and LoadDraw made
  std::vector<int32_t> writer;     // the op that fills it, -1 for constants
  std::vector<int32_t> owner;      // the group op whose dict holds the value, kConstant, or -1
  std::vector<bool> bare;          // nothing but its presence is checked
  std::deque<Source> sources;      // copies; they and the checks keep the objects alive
  std::vector<int32_t> by_source;  // by Source::id of the table that these are copies of
};

struct GroupEntry {
  PyObject* key;
  Py_hash_t hash;
  int32_t slot;
  bool absent;
};

struct Group {
  PyObject* dict = nullptr;  // borrowed, compared only; null: nothing remembered
  uint64_t version = 0;
  int32_t first_entry = 0, last_entry = 0;  // half open, in `entries`
  int32_t first_fixed = 0, last_fixed = 0;  // half open, in `fixed`

  bool remembers(PyObject* now) const { return now && now == dict && dict_version(now) == version; }
  void remember(PyObject* now) {
    if (!now || !keeps_version(now)) return;
    dict = now;
    version = dict_version(now);
  }
};

/// Values that are read from one dict each.
struct Groups {
  /// Reads a group's entries.
  bool read(const Group& group, PyObject* dict, PyObject** values, LastFailure& failure) const {
    for (int32_t i = group.first_entry; i < group.last_entry; ++i) {
      const GroupEntry& entry = entries[i];
      const DictEntry found = dict ? find_item(dict, entry.key, entry.hash) : DictEntry{};
      values[entry.slot] = found.value;
      if (found.known && (found.value == nullptr) == entry.absent) continue;
      failure.entry = i;
      failure.unknown = !found.known;
      return false;
    }
    return true;
  }
  /// Calls `visit(slot)` for each that the group fills.
  template <typename Visit>
  void for_each_written(const Group& group, const Visit& visit) const {
    for (int32_t i = group.first_entry; i < group.last_entry; ++i) visit(entries[i].slot);
    for (int32_t i = group.first_fixed; i < group.last_fixed; ++i) {
      if (is_load(fixed[i].kind)) visit(fixed[i].slot);
    }
  }
  void forget() {
    for (Group& group : all) group.dict = nullptr;
  }

  std::vector<Group> all;
  std::vector<GroupEntry> entries;
  std::vector<Op> fixed;  // what depends only on a group's values and on immutable objects below them
};

/// What is found in one class, and in those that it derives from.
struct TypeAttributes {
  bool hold(const std::vector<Check>& all, LastFailure& failure) {
    const unsigned now = type_version(type);
    return (now != 0 && now == version) || look_up(all, failure);
  }

  PyTypeObject* type;
  unsigned version = 0;  // at the last time when all were right; 0: never
  std::vector<int32_t> checks;

 private:
  bool look_up(const std::vector<Check>& all, LastFailure& failure);
};

/// Slots that hold different objects.
struct DistinctSet {
  explicit DistinctSet(std::vector<int32_t> slots);

  bool all_distinct(const std::vector<PyObject*>& values, LastFailure& failure);
  /// The same where `held`, of the last time, still holds.
  bool moving_distinct(const std::vector<PyObject*>& values);
  /// Behind a check that has passed: which of the slots a snapshot holds fast.
  void hold(const std::vector<bool>& held, const std::vector<PyObject*>& values);

  std::vector<int32_t> slots;
  std::vector<PyObject*> seen;  // a hash set; its size is a power of two, at least twice the slots
  std::vector<int32_t> moving;  // the slots that the snapshot does not hold fast; `seen` has the values of all others

 private:
  /// Where the value is, or would be.
  PyObject** place_of(PyObject* value);
};

/// What tensors are compared with. Ops point to it, so that it never moves.
class TensorChecks {
 public:
  TensorChecks() = default;
  TensorChecks(const TensorChecks& other);

  /// Room for so many, with so many sizes and strides. Before the first is added.
  void reserve(size_t checks, size_t numbers);
  const TensorCheck* add(const TensorGuard& guard);
  /// Of a copy: the check that is `check` in the original.
  const TensorCheck* same(const TensorCheck* check, const TensorChecks& original) const {
    return checks_.data() + (check - original.checks_.data());
  }
  /// No size, or no stride, is compared any more. (planted.h)
  void free(bool strides);

 private:
  std::vector<TensorCheck> checks_;
  std::vector<int64_t> sizes_and_strides_;
};

/// The user's lines that needed the checks; empty: none were noted.
struct UserLines {
  std::string of(int32_t check) const { return by_check.empty() ? std::string() : names[by_check[check]]; }

  std::vector<int32_t> by_check;  // in `names`
  std::vector<std::string> names;
  std::vector<std::string> of_sizes;  // by relation
};

/// What keeps changing, and therefore is in no snapshot.
struct Changes {
  std::vector<uint8_t> ops;    // how often an op's words have changed lately
  std::vector<uint8_t> slots;  // how often a pinned value has
  std::vector<bool> moves;     // by slot: nothing below it belongs in a snapshot
};

}  // namespace magneto::guards
