// The captured operators of a compiled program, one by one: in its place where something unusual is around, beside it
// to verify its results (config.verify), and to find the operator that gave the first NaN (config.nan_watch).
//
// A run that is verified is the program's first; then what it wrote and drew is put back, the operators run, and both
// are compared. The program goes on with what the operators gave, so that a wrong result does no harm.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/undo.h"
#include "runtime/distance.h"
#include "runtime/program/aten_program.h"
#include "runtime/program/compiled_program.h"
#include "runtime/run_checks.h"

namespace magneto::runtime {

/// What is being compiled, for people: the segment, and the user's line of each operator ("" where unknown).
struct Origin {
  std::string place;
  std::vector<std::string> operators;
};

class Reference {
 public:
  Reference(graph::Graph graph, Origin origin) : graph_(std::move(graph)), origin_(std::move(origin)) {}
  Reference(const Reference&) = delete;

  /// In the program's place. What it wrote and drew is put back where an operator raises.
  void run(const at::Tensor* const* inputs, at::Tensor* outputs) const;
  /// The program's run, checked as `run_checks` says. False: nothing was done, as CompiledProgram::run has it.
  bool run_checked(const CompiledProgram& program, const at::Tensor* const* inputs, at::Tensor* outputs) const;

 private:
  struct Operators {
    explicit Operators(const graph::Graph& graph);

    AtenProgram program;
    graph::Undo raising;         // what a run has changed when an operator raises
    graph::Undo all;             // what it has changed in the end
    std::set<size_t> undefined;  // outputs that hold nothing yet
    std::string left_out;        // an operator that must not run twice; "": there is none
  };
  using Tensors = c10::SmallVector<at::Tensor, 8>;

  const Operators& operators() const;
  bool run_verified(const CompiledProgram& program, const at::Tensor* const* inputs, at::Tensor* outputs) const;
  /// How long the program took alone comes in `run`.
  bool run_both(const CompiledProgram& program, const at::Tensor* const* inputs, at::Tensor* outputs,
                VerifyBudget::Duration& run) const;
  bool run_watched(const CompiledProgram& program, const at::Tensor* const* inputs, at::Tensor* outputs) const;
  /// Inputs, but for those that are written what they were: `contents`, in the order of Operators::all.
  Tensors before(const at::Tensor* const* inputs, const std::vector<at::Tensor>& contents) const;
  std::vector<at::Tensor> written(const at::Tensor* const* inputs) const;
  /// "result 0 (aten.mul.Tensor at model.py:12 in f)", "input 2 afterwards".
  std::vector<std::string> names() const;
  /// Whether float64 says that they are as near as eager's dtype allows; else it is told.
  bool judge(const Tensors& given, const Tensors& want, const Tensors& got) const;
  /// The operator after which NaN (or infinity) is there that was not before it.
  std::string first_nonfinite(const Tensors& given, bool nan) const;

  const graph::Graph graph_;
  const Origin origin_;
  mutable std::once_flag once_;
  mutable std::unique_ptr<const Operators> operators_;
  mutable VerifyBudget budget_;
  mutable std::mutex mutex_;
  mutable std::vector<Distance> known_;  // how far results were off that float64 has found right
  mutable std::atomic<bool> told_nan_{false}, told_infinity_{false};
};

}  // namespace magneto::runtime
