// `for i in mask.nonzero(): ...` as one graph: the loops of mixture models over the experts that some token has chosen.
//
// How often such a loop turns, only the run knows, but not more often than the mask has entries. So it is interpreted
// once for each entry, with its place as the number, and what a turn leaves behind (tensors that it writes, local
// variables that it sets) is chosen: `torch.where(hit, behind the turn, in front of it)`.
//
// The body of an `if` on a tensor is such a turn, too.
//
// Invariant: nothing else of a turn lasts, as nobody knows whether it runs. A loop that changes objects, draws numbers,
// needs gradients, is left by `break`, or in which a segment would end, is none of these: the capture begins anew and
// knows that, and goes by the data then.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capture/feedback.h"
#include "capture/interpreter/interp_frame.h"
#include "python/ref.h"
#include "shapes/relation.h"

namespace magneto::capture {

class Capture;

class MaskLoops {
 public:
  explicit MaskLoops(Capture& capture);
  ~MaskLoops();
  MaskLoops(const MaskLoops&) = delete;

  /// At GET_ITER: what stands for the iterator of the value on top. Null: the loop is another one.
  Ref begin(InterpFrame& f);
  static bool is_iterator(PyObject* object);
  /// At FOR_ITER: the next row; null: the loop is over.
  Ref next(InterpFrame& f);
  /// At a jump past the body of an `if` (`on_true`: of an `if not`), whose condition, a tensor, is on top: the body is
  /// a turn of a loop with one entry, and what it leaves behind is chosen; so is the body of its `else`, if it has one.
  /// Gives where the body begins; nothing: it is another one. (chosen_branches.cpp)
  std::optional<int32_t> begin_branch(InterpFrame& f, bool on_true);
  bool ends_at(const InterpFrame& f) const;
  void end_branch(InterpFrame& f);
  /// An exception goes to the handler; null: out of the frame.
  void leave(const InterpFrame& f, const Handler* handler);
  /// The loop that begins here is none of these: why. Empty: it never looked like one.
  std::string why_refused(const InterpFrame& f) const;
  /// The segment ends, however it does, and for whatever reason: no loop may be under way.
  void require_none(const std::string& why = {});
  /// ...here, in front of an instruction of these frames: they need no variable that only a turn of a loop has set.
  void require_known(InterpFrame* innermost);
  /// What a local variable holds that a turn has set, and that can't be chosen. The loop is none if it is read.
  static PyObject* unknown();
  [[noreturn]] void read_unknown(const InterpFrame& f, int32_t slot);
  /// In a turn, the program asks whether a data-dependent size is zero: the answer is that it is not, which
  /// each run that has the turn checks. Nothing: it asks something else.
  std::optional<bool> answer(const shapes::Relation& question);

 private:
  struct Turn;
  struct Loop;

  [[noreturn]] void refuse(const Loop& loop, std::string why);
  void open(InterpFrame& f, Loop& loop, Ref hit);
  void close(InterpFrame& f, Loop& loop);
  /// All that the turn leaves behind but for local variables.
  void finish_turn(InterpFrame& f, Loop& loop);
  /// The first body of an `if` is over, and has left that value on the stack, or none: the one of its `else` begins.
  void begin_other(InterpFrame& f, Loop& branch, Ref value);
  void check_effects(const Loop& loop);
  /// What the turn wrote of the tensors that were there before.
  void choose_writes(InterpFrame& f, Loop& loop);
  bool may_be_saved(const Turn& turn, const at::Tensor& tensor) const;
  void choose_locals(InterpFrame& f, Loop& loop);
  /// Null: it can't be chosen.
  Ref chosen_local(const InterpFrame& f, const Loop& loop, int32_t slot);
  Ref chosen(const Loop& loop, PyObject* behind, PyObject* before);
  /// A value, and how many of the references to it are the loop's own.
  struct Left {
    PyObject* object;
    Py_ssize_t references = 1;
  };
  bool can_be_chosen(const Left& one, const Left& other) const;
  /// Of what the bodies of an `if` and its `else` leave behind. Null: it can't be chosen.
  Ref chosen_of_both(const Loop& branch, const Left& first, const Left& other);
  /// What both sides give: tensors, numbers, or tuples of such.
  Ref chosen_value(const InterpFrame& f, const Loop& branch, PyObject* first, PyObject* other);
  Left left_as_value(const InterpFrame& f, const Loop& branch, PyObject* value) const;
  Ref row(const Loop& loop, int64_t place);
  /// Nothing: there is no such number.
  std::optional<shapes::Expr> number_of_hit(PyObject* hit);
  Ref call_method(const char* name, std::vector<PyObject*> values);

  Capture& c;
  std::vector<std::unique_ptr<Loop>> loops_;                                           // the innermost last
  std::vector<std::pair<std::pair<const InterpFrame*, int32_t>, BreakSite>> unknown_;  // by frame and slot
};

}  // namespace magneto::capture
