// Which tensors a forward computes, and which of the segment's results are views that are made of these.
//
// Below autograd, where compiled code runs, a tensor does not know that it is a view. Results that share memory with an
// input or with each other are therefore made at each run by the view operators themselves, under autograd, from the
// input or from one tensor that the forward gives. So writes to one of them move the version and the history of all.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace magneto::autograd {

struct Results {
  /// A tensor that the forward gives.
  struct Computed {
    graph::ValueId value = graph::kNoValue;
    /// Its stand-in, while the capture lasts. None: it is no result, but says where one lies (`add_places`).
    at::Tensor fake;
    /// A result that is it, or is a view of it or made with it.
    size_t output = 0;
    /// Not a result itself: that result's `_base`.
    bool is_base = false;
  };
  /// An input that is written where autograd records: it has the history of what is written.
  struct Written {
    graph::ValueId input = graph::kNoValue;
    /// As above.
    at::Tensor fake;
  };
  /// One result of the segment.
  struct Output {
    /// An input, or what one of `computed` is.
    graph::ValueId base = graph::kNoValue;
    /// The operators, by position in the graph, that make it of the base; empty: it is the base.
    std::vector<size_t> views = {};
    /// They run in grad mode.
    bool with_grad = true;
  };
  std::vector<Computed> computed;
  std::vector<Written> written;
  std::vector<Output> outputs;
  /// Gradients are taken inside (torch.autograd.grad): hooks on inputs see them, if there are any.
  bool with_hooks = false;
  /// ...and these inputs are leaves, behind which there is nothing that they would go on to.
  std::vector<graph::ValueId> leaves = {};
  /// ...and they may have freed what results consist of.
  bool frees = false;
  /// A root whose gradient passes what was freed, or written since: its backward raises, as in eager.
  struct Freed {
    size_t root = 0;
    std::string error;
    std::vector<graph::ValueId> leaves;  // inputs that it leads to
  };
  std::vector<Freed> freed;
  /// A backward of the program's is given None where a result has no gradient, which zeros would not be.
  bool with_none = false;

  /// Results, whose gradients hooks see that the run registers: each needs a backward of its own.
  std::set<graph::ValueId> hooked = {};

  /// Classes of tensors have said what operators do: the graph's torch calls have other gradients than the program.
  bool of_classes = false;
  /// DTensors among the inputs, and their stand-ins.
  std::vector<std::pair<graph::ValueId, at::Tensor>> distributed = {};

  /// Views are made by operators that read other tensors, too: those that are no inputs are computed.
  void add_places(const graph::Graph& graph);
  /// What may have a gradient: `computed`, then `written`.
  size_t roots() const { return computed.size() + written.size(); }
  const at::Tensor& fake_of_root(size_t root) const {
    return root < computed.size() ? computed[root].fake : written[root - computed.size()].fake;
  }
  void forget_fakes() {
    for (Computed& result : computed) result.fake.reset();
    for (Written& input : written) input.fake.reset();
    distributed.clear();
  }
};

/// `fakes`: stand-ins of graph.outputs; `inputs`: those of graph.inputs. Nothing: a result shares memory in a way that
/// its view operators don't show.
std::optional<Results> results_of(const graph::Graph& graph, const std::vector<at::Tensor>& fakes,
                                  const std::vector<at::Tensor>& inputs,
                                  const std::function<graph::ValueId(const at::Tensor&)>& value_of);

}  // namespace magneto::autograd
