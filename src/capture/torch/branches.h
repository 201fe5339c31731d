// Functions that are captured as graphs of their own, for an operator that runs them or not, or often: torch.cond,
// torch.while_loop, scan and map.
//
// A branch is interpreted where it stands, its operators are recorded behind all others, and then taken out of the
// graph again, as a region: what they read of the graph around is what the region is given. Nothing else of a branch
// may last, as nobody knows whether it runs: a branch that changes an object or a tensor that was there before, draws
// numbers from Python, or can't be interpreted to its end is none. Then the capture begins anew and knows that; the
// segment ends where the data decide.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autograd/regions.h"
#include "autograd/scans.h"
#include "capture/capture.h"
#include "capture/torch/footprint.h"
#include "graph/region.h"

namespace magneto::capture {

/// What several branches share.
struct Shared {
  /// What they read of the graph around.
  autograd::Operands operands;
  /// By result: some branch gives one that requires gradients.
  std::vector<bool> needed;
};

class Branch {
 public:
  /// A function of `operands`, a tuple or list. Borrowed. `carried`: they are tensors, and others in each run: the
  /// region's first inputs.
  Branch(Capture& capture, PyObject* function, PyObject* operands, bool carried = false)
      : capture_(capture), function_(function), operands_(operands), carried_(carried) {}

  /// magneto._C.conditional(pred, true_fn, false_fn, operands): the leaves and the structure of the result. None: the
  /// branches are no graphs, as is known by now.
  static Ref conditional(Capture& capture, const CallArgs& args);
  /// magneto._C.repeated(condition, body, carried), two functions of tensors and a list of these: the tensors behind
  /// the loop. None, as above.
  static Ref repeated(Capture& capture, const CallArgs& args);
  /// magneto._C.scanned(combine, carried, xs, reverse, least), a function of tensors, those that it is given first, and
  /// those of which it is given slices: the leaves and the structure of what is behind the last step, and of what each
  /// gives, stacked. None, as above, or because there are fewer steps than `least`.
  static Ref scanned(Capture& capture, const CallArgs& args);
  /// magneto._C.branch_taken(pred): where they are none.
  static Ref taken(Capture& capture, const CallArgs& args);

 private:
  struct Refused {
    std::string why;
  };

  /// Interprets the function, and takes its operators out of the graph. Gives the number of operands and results that
  /// are known then: a branch that was traced with fewer is traced again. Throws Refused.
  size_t trace(Shared& shared);
  std::vector<PyObject*> reachable() const;
  Ref fresh_operands();
  void interpret(PyObject* operands);
  void take(PyObject* leaves, const Footprint& marks);
  void separate(std::vector<at::Tensor>& tensors, const fake::Session::Mark& from) const;
  void check(const Footprint& marks, const Snapshot& before) const;
  void require_same(const Branch& other) const;
  void require_predicate() const;
  void require_like(const std::vector<at::Tensor>& carried) const;
  /// Where two results differ as tensors; empty: nowhere.
  static std::string difference(fake::Session& session, const at::Tensor& a, const at::Tensor& b);
  void put_first(graph::Cut& cut, const graph::Graph& whole) const;
  /// Its backward is recorded, and cut out.
  void differentiate(const Shared& shared, const fake::Session::Mark& from);
  void cut_backward(const fake::Session::Mark& from);

  static std::vector<at::Tensor> record_loop(Capture& capture, Branch& condition, Branch& body, const Shared& shared,
                                             const std::vector<at::Tensor>& carried);

  // -- a step of a scan, or of a loop, which has no slices --
  void begin_steps(const std::vector<at::Tensor>& carried, const std::vector<at::Tensor>& xs);
  void trace_steps(Shared& shared, const std::vector<at::Tensor>& carried);
  void cut_step(const Shared& shared, const autograd::RegionGradients& made, const fake::Session::Mark& from);
  void require_carried() const;
  at::Tensor stacked(const at::Tensor& step) const;
  void make_likes();
  static std::vector<at::Tensor> record_scan(Capture& capture, Branch& step, const Shared& shared,
                                             autograd::ScanCall call, bool reverse);
  void give(const graph::Graph& around, const std::vector<graph::ValueId>& operands, size_t carried);
  std::shared_ptr<const graph::Region> make_region(graph::Cut cut, std::string name);
  /// The instruction of the program that calls the operator.
  static BreakSite site_of(InterpFrame& polyfill);
  static std::vector<at::Tensor> add_call(Capture& capture, const std::function<std::vector<at::Tensor>()>& record);
  /// The leaves of the result.
  static Ref record(Capture& capture, PyObject* pred, Branch& if_true, Branch& if_false, const Shared& shared);

  Capture& capture_;
  PyObject *function_, *operands_;
  const bool carried_;
  /// Tensors among the leaves of the result, which have no values any more. The others; null: a tensor.
  std::vector<at::Tensor> results_;
  std::vector<Ref> constants_;
  Ref leaves_, structure_;
  std::vector<at::Tensor> gradients_;
  std::string no_backward_;
  graph::Cut forward_, backward_;
  /// Where it has operands that are others in each run: what stood for them in the last trace; those that require
  /// gradients.
  std::vector<std::pair<graph::ValueId, at::Tensor>> fresh_;
  std::vector<bool> needs_grad_;

  /// Of a scan or a loop, whose first operands are carried, the others slices.
  struct Steps {
    size_t carried;
    c10::SymInt count;
    /// What the backward reads of `fresh_`.
    std::vector<size_t> read;
    /// What the operator gives, and its backward: fakes whose values are gone.
    std::vector<at::Tensor> likes, gradient_likes;
  };
  std::optional<Steps> steps_;
  /// What a step is given.
  std::vector<at::Tensor> step_likes_;
};

}  // namespace magneto::capture
