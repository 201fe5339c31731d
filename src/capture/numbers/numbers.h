// Numbers from outside that the capture goes on without knowing.
//
// Invariant: a number is itself, under a guard on its value, or one *unknown number* stands for it, whose source the
// guards of each run compute again. Whoever needs the value asks for `known`, which guards it.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "guards/draw.h"
#include "guards/number.h"
#include "guards/source.h"
#include "python/ref.h"
#include "shapes/relation.h"

namespace magneto::capture {

class Capture;
struct CallArgs;

class Numbers {
 public:
  explicit Numbers(Capture& capture) : c(capture) {}
  Numbers(const Numbers&) = delete;

  /// The value itself: of a number that is not known yet, under a guard.
  Ref known(PyObject* value);
  /// The same for the arguments in front of `end`, but for numbers that follow from sizes, if those are `kept`.
  void specialize_all(CallArgs& args, size_t end = SIZE_MAX, bool sizes_kept = false);
  /// Something stands for a number or a string that is not known.
  bool has_unknown_numbers() const;
  /// The result, if one of the operands is an unknown number and the other one a number; else null.
  Ref unknown_operation(guards::Arithmetic operation, PyObject* left, PyObject* right);
  /// The same for a C function of one number, or two.
  Ref unknown_function(PyObject* function, const CallArgs& args);
  /// What a random.Random gives next: peeked at by the guards of each run, and drawn with the run's writes.
  /// (draws.cpp)
  /// Null: that is not to be had.
  Ref draw(PyObject* random, guards::Draw draw);
  /// What sets the state of a generator of NumPy, likewise: None. Null: that is not to be had.
  Ref seed(PyObject* random, guards::Draw draw);
  /// Its state as of now, as the method of C code gives it. Null, as below, likewise.
  Ref state_of(PyObject* random);
  /// Sets it to a state from outside, or one that `state_of` has given: None.
  Ref set_state(PyObject* random, PyObject* state);
  /// From outside, with the methods that a random.Random has by itself.
  bool is_drawable(PyObject* random);
  /// Captures for each outcome of further draws from such ranges, beside those that decide already, are few.
  bool may_decide(PyObject* random, std::span<PyObject* const> ranges);
  /// The answer to that question is about to be assumed: a side exit if too many draws decide.
  void draws_decide(const shapes::Relation& question);
  /// The other operand of a tensor: a number that has been found different becomes an input of the graph.
  Ref beside_tensor(PyObject* value);
  /// What stands for a float that the tensor holds, and only the data says.
  Ref data_float(const at::Tensor& holder);
  /// `item()` of a tensor whose one float is taken as a data-dependent one. Null: it is not.
  Ref float_item(PyObject* callable, const std::vector<PyObject*>& values);
  /// It as a tensor to be handed on.
  Ref tensor_of_data_float(PyObject* value);
  /// True, False, or the question, of an unknown number.
  Ref is_not_zero(PyObject* value);
  /// C code looks at an unknown number.
  void unknown_is_read();
  /// Guards a length, or ends the segment where it keeps changing.
  void guard_length(const guards::Source* source, PyTypeObject* type, Py_ssize_t length);
  Ref wrap_scalar(PyObject* raw, const guards::Source* source);
  Ref unknown_number(PyObject* now, const guards::Source* source, bool changes);
  /// The float in that input is what it is now. False: in no input.
  bool assume_float(const at::Tensor& holder);
  /// The value of this unknown number is needed where no guard can be left any more: throws Retry.
  [[noreturn]] void need(PyObject* unknown);
  /// Notes what was found; true: captures have found something else there. `what`: of the source.
  bool has_changed(const guards::Source* source, PyObject* found, const char* what);
  void exit_on_change(const guards::Source* source, PyObject* found, const char* what);

  std::unordered_map<const guards::Source*, Ref> unknown_numbers;
  /// What the segment has done to a generator from outside.
  struct Drawn {
    Ref random;
    Ref start;             // the state that it was set to, from outside; null: that of the segment's beginning
    Py_ssize_t last = -1;  // the last draw since; -1: none
  };
  std::vector<Drawn> draws;

 private:
  /// A float that is computed of such numbers. Null: the value is needed.
  Ref data_operation(guards::Arithmetic operation, PyObject* left, PyObject* right);
  [[noreturn]] void exit_for_float();
  /// What is computed of such operands, and is `now` in this run. An int that changes may be a size again.
  Ref computed_number(const Ref& now, const guards::Source* source, std::initializer_list<PyObject*> operands);
  const guards::Source* source_of_operand(PyObject* operand);

  Drawn* drawn_from(PyObject* random);
  Drawn& drawn_by(PyObject* random);
  /// What its draws are draws from: itself, or the state that it was set to.
  const guards::Source* base_of(PyObject* random);
  Ref peek(PyObject* random, Py_ssize_t last);

  Capture& c;
  std::unordered_map<const guards::Source*, Ref> states_;  // of generators, that the program has
  std::vector<Ref> data_floats_;
  /// The number of that source, or if it is a bool the outcome alone, is guarded. False: of too many draws.
  bool let_draws_decide(const guards::Source* source, bool outcome, bool is_size);

  int64_t outcomes_ = 1;                                // of the draws that decide
  bool comparison_decides_ = false;                     // one of them does by a comparison
  std::unordered_set<const guards::Source*> decisive_;  // the others
};

/// What a random.Random gives is in what is computed there. (draws.cpp)
bool is_drawn(const guards::Source* source);

}  // namespace magneto::capture
