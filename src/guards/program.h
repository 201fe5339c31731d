// The compiled form of a GuardSet: flat arrays of small records, run in order.
//
// Values read from one dict form a group. A group remembers the dict and its version at the last time when all its
// entries were read and all checks that depend on nothing else passed; while both are unchanged, the values in the
// slots are still right and none of that is done again.
#pragma once

#include <Python.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "guards/checks.h"
#include "guards/guards.h"
#include "guards/tensor_check.h"

namespace magneto::guards {

enum class OpKind : uint8_t {
  // Loads. They write `slot`, read `other` (the slot of the base), and fail if the value is missing (or, with `absent`,
  // if it is there).
  LoadLocal,
  LoadStack,
  LoadFunction,
  LoadConst,
  LoadClosure,
  LoadClosureCell,
  LoadCell,
  LoadMember,
  LoadInstanceDict,
  LoadSeqItem,
  LoadBoundSelf,
  LoadBoundFunction,
  LoadGrad,
  // Groups: group `number`, on the instance dict of `slot` or on the dict in `slot`.
  InstanceEntries,
  DictEntries,
  // Checks of `slot`.
  CheckType,
  CheckIdentity,
  CheckEquals,
  CheckItemCount,  // list, tuple
  CheckDictLength,
  CheckSetLength,
  CheckKeys,
  CheckTensor,
  CheckAlias,
  CheckDistinct,
  CheckAllDistinct,  // the slots of `distinct_sets[number]`
  CheckFunction,
  CheckTypeAttributes,  // of `types[number]`
};

struct Op {
  OpKind kind;
  bool absent = false;
  int32_t slot = -1;
  int32_t other = -1;
  int32_t check = -1;  // the check that it makes, or -1
  const void* pointer = nullptr;
  int64_t number = 0;
};
static_assert(sizeof(Op) == 32);

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
};

struct TypeAttributes {
  PyTypeObject* type;
  unsigned version = 0;  // at the last time when all were right; 0: never
  std::vector<int32_t> checks;
};

struct DistinctSet {
  std::vector<int32_t> slots;
  std::vector<PyObject*>
      seen;  // a hash set, empty between checks; its size is a power of two, at least twice the slots
};

struct GuardProgram::Impl {
  Impl(const GuardSet& set, const SourceTable& table);

  /// Runs the checks; fills `values`. With `use_hint`, what failed last goes first.
  bool run(const Roots& roots, bool use_hint);
  bool step(const Op& op, const Roots& roots);
  bool store(const Op& op, PyObject* value);
  bool enter(Group& group, PyObject* dict, const Roots& roots);
  bool check_type_attributes(TypeAttributes& attributes);
  bool check_all_distinct(DistinctSet& set);
  void remember_failure(int32_t op);
  std::string describe_failure();

  std::optional<GlobalState> global_state;
  std::vector<Op> ops;
  std::vector<Op> fixed;  // what depends only on a group's values and on immutable objects below them
  std::vector<Group> groups;
  std::vector<GroupEntry> entries;
  std::vector<TypeAttributes> types;
  std::vector<DistinctSet> distinct_sets;
  std::vector<TensorCheck> tensors;
  std::vector<int64_t> sizes_and_strides;
  std::vector<PyObject*> values;  // by slot; borrowed
  std::vector<int32_t> writer;    // by slot: the op that fills it, -1 for constants

  std::deque<Source> sources;  // the program's own copies, by slot; they and the checks keep the objects alive
  std::vector<Check> checks;
  std::vector<bool> bare;               // by slot: nothing but its presence is checked
  std::vector<int32_t> slot_by_source;  // by Source::id of the table

  // The op that failed last, with all that it needs before it, in order; runs first while it goes on failing.
  std::vector<int32_t> hint;
  int32_t hint_passes = 0;

  // Where the last run failed.
  const Op* failed_op = nullptr;
  int32_t failed_entry = -1;
  bool failed_unknown = false;  // the entry's key could not be compared without Python code
  int32_t failed_check = -1;
  int32_t failed_slots[2] = {-1, -1};  // two that hold one object
};

}  // namespace magneto::guards
