// Sizes that differ from run to run, and numbers that only the data say.
//
// Invariant: a size is a plain number, or an expression over symbols each of which an input of the graph tells; what is
// found out of one while capturing (a comparison, a broadcast) is an assumption, which the guards of each run check, or
// a check in the graph where the data decide.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "guards/guards.h"
#include "guards/source.h"
#include "python/ref.h"
#include "shapes/relation.h"

namespace magneto::capture {

class Capture;
struct CallArgs;

class Symbols {
 public:
  explicit Symbols(Capture& capture) : c(capture) {}
  Symbols(const Symbols&) = delete;

  /// All sizes of the tensors and all sizes among the arguments of a call are those of this run. False: they were.
  bool fix_sizes(std::span<PyObject* const> args);
  /// torch._check and its like. Null: to be interpreted.
  Ref check(PyObject* function, const CallArgs& args);
  /// A tensor of the number; `wrapped`: beside tensors what a Python number is.
  Ref tensor_of_data_number(const shapes::Expr& size, bool wrapped);
  /// Likewise a tensor of a bool.
  Ref tensor_of_question(const shapes::Relation& question);
  /// Numbers that a torch call has given since there were so many, where the torch level finds them: in its result.
  void bind_symbols(PyObject* result, size_t before, graph::TorchNode& node);
  /// Makes operators of the graph of what was assumed of them.
  /// `of_program`: it made them itself, by torch._check.
  void flush_checks(bool of_program = false);
  /// The segment is captured again, to end in front of what makes sizes that only the data says: throws Retry.
  [[noreturn]] void end_at_data_sizes();
  /// It holds, or each run checks it. False: it is not true.
  bool check_questions(const std::vector<shapes::Relation>& relations);
  bool check_condition(PyObject* condition);
  /// Something was raised: perhaps as a data-dependent size has a rest in the example, which it need not have
  /// (`x[mask].reshape(4, -1)`). Then the segment is captured again, with another example: throws Retry.
  void retry_without_rest();
  [[noreturn]] void exit_at_question(const shapes::Relation& relation);
  [[noreturn]] void exit_for_number(shapes::Expr size);
  /// The program goes over the rows of a tensor: how many these are has an answer. `wanted`: it takes so many.
  void require_length(PyObject* tensor, std::optional<int64_t> wanted = {});
  /// The number that a size is: an unknown one, unless it is known after all.
  Ref size_number(shapes::Expr size);
  /// torch.Size, where one of the sizes is such a number; null: all are plain.
  Ref shape_of(const at::Tensor& tensor);
  /// The object for operators of torch: with torch.SymInt in place of such numbers, also in containers.
  Ref with_symints(PyObject* object);
  /// The same with the numbers themselves, which are assumed from here on.
  Ref with_known_sizes(PyObject* object);
  /// What torch gave, with such numbers in place of torch.SymInt: one, or a tuple.
  Ref with_size_numbers(PyObject* result);
  /// A tensor is to hold what follows from sizes. False: it has to hold a constant.
  bool makes_tensor_of_sizes();
  Ref size_operation(guards::Arithmetic operation, PyObject* left, PyObject* right);
  shapes::Expr symbol_of_number(const guards::Source* source, int64_t now);
  /// Expressions for a tensor's sizes; empty: all are plain numbers.
  std::vector<shapes::Expr> symbolic_sizes(PyObject* raw, const guards::Source* source);
  void guard_symbolic(const guards::Source* source, PyObject* raw, const std::vector<shapes::Expr>& sizes,
                      const std::vector<shapes::Expr>& strides);
  /// Puts the graph's sizes in terms of symbols that inputs tell, and leaves the guards.
  void finish_sizes();

  int of_torch = 0;  // functions of PyTorch that are interpreted
  bool makes_tensors_of_sizes = false;
  std::unordered_map<const void*, Ref> size_numbers;  // by expression
  std::vector<Ref> symbolic_bools;
  guards::SizeAssumptions assumed;
  std::vector<std::string> size_log;
  std::string violation;

 private:
  Ref question(const shapes::Relation& relation);
  void note_assumptions();
  shapes::Expr symbol_at(const guards::SizePlace& place, int64_t now, shapes::Range range);
  const guards::Source* source_of_size(shapes::Expr size);
  void check_required_sizes();
  /// Throws Retry, if there is an example for which all these hold.
  void retry_with_example(const std::vector<shapes::Relation>& relations);

  Capture& c;
  std::vector<std::pair<guards::SizePlace, shapes::Expr>> required_;        // marked as dynamic
  std::vector<std::pair<shapes::Relation, std::string>> size_assumptions_;  // with the user's line
  std::unordered_map<int64_t, shapes::Expr> duck_sizes_;                    // equal sizes are one symbol
};

/// A function of PyTorch in Python is interpreted in this scope, for the sizes that it was given.
class OfTorch {
 public:
  OfTorch(Symbols& symbols, bool on) : symbols_(symbols), on_(on) { symbols_.of_torch += on_; }
  ~OfTorch() { symbols_.of_torch -= on_; }
  OfTorch(const OfTorch&) = delete;

 private:
  Symbols& symbols_;
  const bool on_;
};

}  // namespace magneto::capture
