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
#include <optional>
#include <string>
#include <vector>

#include "guards/checks.h"
#include "guards/failure.h"
#include "guards/guards.h"
#include "guards/op.h"
#include "guards/parts.h"
#include "guards/snapshot.h"
#include "guards/text.h"

namespace magneto::guards {

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
  bool load_deque_item(const Op& op);
  bool enter(Group& group, PyObject* dict, const Roots& roots);
  bool check_all_distinct(DistinctSet& set);
  void remember_failure(int32_t op);
  Failure describe_failure();
  /// The user's line that first needed something of the source of a slot, or of what hangs on it.
  std::string place_below(int32_t slot) const;

  /// The user's line that needed a check.
  std::string place_of(const Check* check) const {
    return check ? lines.of(static_cast<int32_t>(check - checks.data())) : std::string();
  }

  std::optional<GlobalState> global_state;
  std::vector<Op> ops;

  // What ops refer to.
  Slots slots;
  Groups groups;
  std::vector<TypeAttributes> types;
  std::vector<DistinctSet> distinct_sets;
  std::vector<SizeCheck> size_checks;
  TensorChecks tensors;
  std::vector<Check> checks;
  UserLines lines;

  Snapshot snapshot;
  std::vector<uint8_t> steady;  // by op: in the snapshot
  Changes changes;
  std::vector<Ref> equal_constants;  // by op: the value that CheckEquals found, alive so that it is known again

  // The op that failed last, with all that it needs before it, in order; runs first while it goes on failing.
  std::vector<int32_t> hint;
  int32_t hint_passes = 0;
  LastFailure failed;
};

template <typename Visit>
void GuardProgram::Impl::for_each_written(const Op& op, const Visit& visit) const {
  if (is_load(op.kind)) visit(op.slot);
  if (is_group(op.kind)) groups.for_each_written(groups.all[op.number], visit);
}

}  // namespace magneto::guards
