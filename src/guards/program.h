// The compiled form of a GuardSet: flat arrays of small records, run in order.
//
// Values read from one dict form a group. A group remembers the dict and its version at the last time when all its
// entries were read and all checks that depend on nothing else passed; while both are unchanged, the values in the
// slots are still right and none of that is done again.
//
// Behind a run that passed, a snapshot is taken of all that it read (snapshot.h). The next runs compare the snapshot;
// ops whose memory keeps changing are taken out of it and run each time.
#pragma once

#include <Python.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "guards/checks.h"
#include "guards/failure.h"
#include "guards/guards.h"
#include "guards/snapshot.h"
#include "guards/tensor_check.h"
#include "guards/text.h"

namespace magneto::guards {

constexpr int32_t kConstant = -2;

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
  LoadNumber,  // of `other` and the slot `number >> 8`, by the arithmetic `number & 255` (`pointer`: the function)
  LoadSize,    // of the tensor `other`, in dimension `number`
  LoadDraw,    // of the random.Random `other`, its draw `number`
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
  CheckTensorData,
  CheckArray,
  CheckBuiltinMethod,
  CheckAlias,
  CheckDistinct,
  CheckAllDistinct,  // the slots of `distinct_sets[number]`
  CheckSizes,        // `size_checks[number]`
  CheckFunction,
  CheckAbcRegistrations,  // there have been `number`
  CheckTypeAttributes,    // of `types[number]`
  CheckState,
  CheckPlanted,  // less than there should be, for tests (planted.h): `number`
};

inline bool is_load(OpKind kind) { return kind <= OpKind::LoadGrad; }
inline bool is_group(OpKind kind) { return kind == OpKind::InstanceEntries || kind == OpKind::DictEntries; }

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
  std::vector<PyObject*> seen;  // a hash set; its size is a power of two, at least twice the slots
  std::vector<int32_t> moving;  // the slots that the snapshot does not hold fast; `seen` has the values of all others

  /// Where the value is, or would be.
  PyObject** place_of(PyObject* value);
};

struct GuardProgram::Impl {
  Impl(const GuardSet& set, const SourceTable& table);
  /// The same checks, with nothing remembered. (copy.cpp)
  Impl(const Impl& other);

  /// Checks, by the snapshot where it serves; fills `values`. What failed last goes first.
  bool check(const Roots& roots);
  /// What failed last, with all that it needs: false if it fails again.
  bool run_hint(const Roots& roots);
  /// Runs all ops.
  bool run(const Roots& roots);
  Failure explain(const Roots& roots);
  std::vector<Failure> explain_all(const Roots& roots);
  /// Nanoseconds of each op, run for itself; empty if the guards do not hold.
  std::vector<double> time_ops(const Roots& roots);
  /// What a line of text describes.
  struct Line {
    const Source* source;  // null: none
    const Check* check;    // null: the global state, or that there is something at the source
    bool absent;           // ...that there is not
    int32_t op;            // the position of the op that checks it; -1: the global state
  };
  /// Calls `visit(line)` for each guard.
  template <typename Visit>
  void for_each_line(const Visit& visit) const;
  std::string text(const Line& line, const Names& names) const;
  std::string place_of(const Line& line) const;
  enum class Answer : uint8_t { Holds, Fails, Changed };  // Changed: the ops have to tell
  Answer run_snapshot(const Roots& roots);
  /// After a run that passed.
  void take_snapshot();
  void prepare_snapshots();
  bool add_to_snapshot(int32_t op, const Snapshot& before);
  void let_move(int32_t slot);
  template <typename Visit>
  void for_each_written(const Op& op, const Visit& visit) const;
  bool step(const Op& op, const Roots& roots);
  bool store(const Op& op, PyObject* value);
  bool load_number(const Op& op);
  bool load_size(const Op& op);
  bool load_draw(const Op& op);
  bool enter(Group& group, PyObject* dict, const Roots& roots);
  bool check_type_attributes(TypeAttributes& attributes);
  bool check_all_distinct(DistinctSet& set);
  /// The same under a valid snapshot: only what it does not hold fast is looked at.
  bool check_moving_distinct(DistinctSet& set);
  void remember_failure(int32_t op);
  Failure describe_failure();
  /// The user's line that first needed something of the source of a slot, or of what hangs on it.
  std::string place_below(int32_t slot) const;

  std::optional<GlobalState> global_state;
  std::vector<Op> ops;
  std::vector<Op> fixed;  // what depends only on a group's values and on immutable objects below them
  std::vector<Group> groups;
  std::vector<GroupEntry> entries;
  std::vector<TypeAttributes> types;
  std::vector<DistinctSet> distinct_sets;
  std::vector<SizeCheck> size_checks;
  std::vector<TensorCheck> tensors;
  std::vector<int64_t> sizes_and_strides;
  std::vector<PyObject*> values;  // by slot; borrowed
  std::vector<Ref> computed;      // by slot: what LoadNumber, LoadSize and LoadDraw made
  std::vector<int32_t> writer;    // by slot: the op that fills it, -1 for constants
  std::vector<int32_t> owner;     // by slot: the group op whose dict holds the value, kConstant, or -1

  std::deque<Source> sources;  // the program's own copies, by slot; they and the checks keep the objects alive
  std::vector<Check> checks;
  std::vector<int32_t> places;  // by check: in `place_names`, the user's line that needed it; empty: none was noted
  std::vector<std::string> place_names, size_places;
  std::string place_of(const Check* check) const {
    return check && !places.empty() ? place_names[places[static_cast<size_t>(check - checks.data())]] : std::string();
  }
  std::vector<bool> bare;               // by slot: nothing but its presence is checked
  std::vector<int32_t> slot_by_source;  // by Source::id of the table

  Snapshot snapshot;
  std::vector<uint8_t> steady;        // by op: in the snapshot
  std::vector<uint8_t> op_changes;    // by op: how often its words have changed lately
  std::vector<uint8_t> slot_changes;  // by slot: how often a pinned value has
  std::vector<bool> moves;            // by slot: nothing below it belongs in a snapshot
  std::vector<Ref> equal_constants;   // by op: the value that CheckEquals found, alive so that it is known again

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

template <typename Visit>
void GuardProgram::Impl::for_each_written(const Op& op, const Visit& visit) const {
  if (is_load(op.kind)) visit(op.slot);
  if (!is_group(op.kind)) return;
  const Group& group = groups[op.number];
  for (int32_t i = group.first_entry; i < group.last_entry; ++i) visit(entries[i].slot);
  for (int32_t i = group.first_fixed; i < group.last_fixed; ++i) {
    if (is_load(fixed[i].kind)) visit(fixed[i].slot);
  }
}

}  // namespace magneto::guards
