#include "autograd/scans.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "autograd/regions.h"
#include "fake/autograd_node.h"

namespace magneto::autograd {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

std::vector<graph::ValueId> values_of(const fake::Session& session, const std::vector<at::Tensor>& tensors) {
  std::vector<graph::ValueId> ids;
  for (const at::Tensor& tensor : tensors) ids.push_back(session.value_of(tensor));
  return ids;
}

graph::AtenNode scan_node(const fake::Session& session, const std::shared_ptr<const graph::Region>& step,
                          const std::vector<at::Tensor>& carried, const std::vector<at::Tensor>& xs,
                          std::vector<int64_t> kept, bool reverse, const std::vector<at::Tensor>& operands,
                          bool random) {
  graph::AtenNode node{.op = c10::Dispatcher::singleton().findSchemaOrThrow("magneto::scan", random ? "random" : "")};
  node.args = {step,
               values_of(session, carried),
               values_of(session, xs),
               c10::IValue(std::move(kept)),
               c10::IValue(reverse),
               values_of(session, operands)};
  return node;
}

class ScanNode final : public RegionNode {
 public:
  /// `kept`: what was carried into each step, where that is read.
  ScanNode(ScanCall call, const std::vector<at::Tensor>& kept, torch::autograd::edge_list&& edges)
      : RegionNode("magneto::scan", call.refusal, std::move(edges)), call_(std::move(call)) {
    for (const at::Tensor& tensor : kept) saved_.emplace_back(tensor, /*is_output=*/false);
    for (const size_t i : call_.read) {
      if (i >= call_.carried.size()) saved_.emplace_back(call_.xs[i - call_.carried.size()], /*is_output=*/false);
    }
    for (const at::Tensor& tensor : call_.carried) carried_edges_.push_back(tensor.requires_grad());
    for (const at::Tensor& tensor : call_.operands) operands_.emplace_back(tensor, /*is_output=*/false);
    call_.carried.clear();
    call_.xs.clear();
    call_.operands.clear();
  }

  variable_list apply(variable_list&& gradients) override {
    fake::Session& session = *fake::Session::current();
    std::vector<at::Tensor> carried, xs, operands;
    for (const SavedVariable& saved : saved_) xs.push_back(saved.unpack());
    for (const SavedVariable& saved : operands_) operands.push_back(saved.unpack());
    size_t next = 0;
    for (size_t i = 0; i < call_.results_need_grad.size(); ++i) {
      const bool is_carried = i < call_.carried_need_grad.size();
      at::Tensor gradient;
      if (call_.results_need_grad[i]) {
        gradient = gradients[next].defined() ? gradients[next].contiguous() : input_metadata(next).zeros_like();
        ++next;
      } else if (is_carried && call_.carried_need_grad[i]) {
        const at::Tensor& like = call_.gradient_likes[carried.size()];
        gradient = at::zeros_symint(like.sym_sizes(), like.options());
      }
      if (gradient.defined()) (is_carried ? carried : xs).push_back(gradient);
    }
    const size_t states = carried.size();
    for (const at::Tensor& operand : operands) {
      if (!operand.requires_grad()) continue;
      carried.push_back(at::zeros_like(operand, at::TensorOptions(), at::MemoryFormat::Contiguous));
    }
    const size_t sums = carried.size();
    const variable_list made = session.add_call(
        scan_node(session, call_.backward, carried, xs, {}, !call_.reverse, operands, /*random=*/false),
        call_.gradient_likes);
    variable_list given(made.begin() + static_cast<std::ptrdiff_t>(states),
                        made.begin() + static_cast<std::ptrdiff_t>(sums));
    for (size_t i = 0, state = 0; i < call_.carried_need_grad.size(); ++i) {
      if (carried_edges_[i]) given.push_back(made[state]);
      state += call_.carried_need_grad[i];
    }
    given.insert(given.end(), made.begin() + static_cast<std::ptrdiff_t>(sums), made.end());
    return given;
  }

 private:
  ScanCall call_;
  std::vector<bool> carried_edges_;
  std::vector<SavedVariable> saved_, operands_;
};

class LoopNode final : public RegionNode {
 public:
  LoopNode(LoopCall call, torch::autograd::edge_list&& edges)
      : RegionNode("magneto::while_loop", call.refusal, std::move(edges)), call_(std::move(call)) {
    for (const at::Tensor& tensor : call_.carried) carried_.emplace_back(tensor, /*is_output=*/false);
    for (const at::Tensor& tensor : call_.operands) operands_.emplace_back(tensor, /*is_output=*/false);
    call_.carried.clear();
    call_.operands.clear();
  }

  variable_list apply(variable_list&& gradients) override {
    fake::Session& session = *fake::Session::current();
    std::vector<at::Tensor> carried, operands, state;
    for (const SavedVariable& saved : carried_) carried.push_back(saved.unpack());
    for (const SavedVariable& saved : operands_) operands.push_back(saved.unpack());
    for (size_t i = 0; i < gradients.size(); ++i) {
      state.push_back(gradients[i].defined() ? gradients[i].contiguous() : input_metadata(i).zeros_like());
    }
    const auto states = static_cast<std::ptrdiff_t>(state.size());
    for (const at::Tensor& operand : operands) {
      if (!operand.requires_grad()) continue;
      state.push_back(at::zeros_like(operand, at::TensorOptions(), at::MemoryFormat::Contiguous));
    }
    graph::AtenNode node{.op = c10::Dispatcher::singleton().findSchemaOrThrow("magneto::while_loop_backward", "")};
    node.args = call_.backward;
    for (const auto* tensors : {&carried, &state, &operands}) node.args.emplace_back(values_of(session, *tensors));
    const variable_list made = session.add_call(std::move(node), call_.gradient_likes);
    variable_list given(made.begin() + states, made.end());
    for (size_t i = 0, next = 0; i < carried.size(); ++i) {
      if (carried[i].requires_grad()) given.push_back(made[next]);
      next += call_.need_grad[i];
    }
    return given;
  }

 private:
  LoopCall call_;
  std::vector<SavedVariable> carried_, operands_;
};

/// In the order of the gradients that nodes give.
torch::autograd::edge_list edges_of(std::initializer_list<const std::vector<at::Tensor>*> lists) {
  torch::autograd::edge_list edges;
  for (const auto* tensors : lists) {
    for (const at::Tensor& tensor : *tensors) {
      if (tensor.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(tensor));
    }
  }
  return edges;
}

void set_histories(const std::vector<at::Tensor>& made, const std::vector<bool>& needed, const NodePointer& node) {
  for (size_t i = 0; i < made.size(); ++i) {
    if (needed[i]) torch::autograd::set_history(made[i], node);
  }
}

}  // namespace

std::vector<at::Tensor> record_loop(fake::Session& session, graph::AtenNode node, LoopCall call) {
  std::vector<at::Tensor> made = session.add_call(std::move(node), call.carried);
  const std::vector<bool> needed = call.need_grad;
  if (std::ranges::find(needed, true) == needed.end()) return made;
  auto edges = edges_of({&call.operands, &call.carried});
  set_histories(made, needed, make_autograd_node<LoopNode>(std::move(call), std::move(edges)));
  return made;
}

std::vector<at::Tensor> record_scan(fake::Session& session, ScanCall call) {
  std::vector<int64_t> kept;
  for (const size_t i : call.read) {
    if (i < call.carried.size()) kept.push_back(static_cast<int64_t>(i));
  }
  std::vector<at::Tensor> made = session.add_call(
      scan_node(session, call.step, call.carried, call.xs, kept, call.reverse, call.operands, call.random), call.likes);
  const std::vector<at::Tensor> for_backward(made.end() - static_cast<std::ptrdiff_t>(kept.size()), made.end());
  made.resize(made.size() - kept.size());
  const std::vector<bool> needed = call.results_need_grad;
  if (std::ranges::find(needed, true) == needed.end()) return made;
  auto edges = edges_of({&call.operands, &call.carried, &call.xs});
  set_histories(made, needed, make_autograd_node<ScanNode>(std::move(call), for_backward, std::move(edges)));
  return made;
}

}  // namespace magneto::autograd
