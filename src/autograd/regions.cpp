#include "autograd/regions.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "autograd/engine.h"
#include "autograd/nodes.h"
#include "fake/autograd_node.h"

namespace magneto::autograd {

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// Where the gradient of an operand ends: what computed the operand is not the region's.
struct End final : Node {
  explicit End(const at::Tensor& operand) { add_input_metadata(operand); }
  variable_list apply(variable_list&& /*gradients*/) override { return {}; }
};

using Ends = std::map<std::pair<const Node*, uint32_t>, NodePointer>;

/// Lets the edges that lead to operands lead to their ends. Not empty: why there is no backward.
std::string cut_off(const Edge& from, const Ends& ends, std::set<const Node*>& seen) {
  std::vector<Node*> open = {from.function.get()};
  while (!open.empty()) {
    Node& node = *open.back();
    open.pop_back();
    if (!seen.insert(&node).second) continue;
    if (is_python(node)) return "a custom autograd.Function in a branch (" + node.name() + ")";
    if (const std::string why = why_no_backward(node); !why.empty()) return why;
    if (is_history(node)) return "a branch reads history from before the capture";
    if (has_hooks(node)) return "a hook on a gradient in a branch";
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      const Edge& next = node.next_edge(i);
      if (!next.is_valid()) continue;
      if (const auto end = ends.find({next.function.get(), next.input_nr}); end != ends.end()) {
        node.next_edges()[i] = Edge(end->second, 0);
      } else if (dynamic_cast<const End*>(next.function.get()) == nullptr) {
        open.push_back(next.function.get());
      }
    }
  }
  return {};
}

/// The gradient with its elements where those of the result lie, as the backward was captured: that of a sum is one
/// element, expanded.
at::Tensor laid_out_as(const at::Tensor& gradient, const at::Tensor& result) {
  if (result.is_contiguous()) return gradient.contiguous();
  const at::IntArrayRef strides = result.strides();
  std::vector<int64_t> order(strides.size()), back(strides.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
  return gradient.permute(order).contiguous().permute(back);
}

class BranchNode final : public RegionNode {
 public:
  BranchNode(RegionCall call, torch::autograd::edge_list&& edges)
      : RegionNode(call.node.op.operator_name().name, call.refusal, std::move(edges)), call_(std::move(call)) {
    for (const at::Tensor& tensor : call_.arguments) arguments_.emplace_back(tensor, /*is_output=*/false);
    for (const at::Tensor& tensor : call_.operands) operands_.emplace_back(tensor, /*is_output=*/false);
    call_.arguments.clear();
    call_.operands.clear();
  }

  variable_list apply(variable_list&& gradients) override {
    fake::Session& session = *fake::Session::current();
    graph::AtenNode node = call_.backward;
    for (size_t i = 0; i < arguments_.size(); ++i) node.args[i] = session.value_of(arguments_[i].unpack());
    auto& operands = std::get<std::vector<graph::ValueId>>(node.args.back());
    operands.clear();
    for (const auto& operand : operands_) operands.push_back(session.value_of(operand.unpack()));
    size_t next = 0;
    for (size_t i = 0; i < call_.results.size(); ++i) {
      if (!call_.results_need_grad[i]) continue;
      at::Tensor& gradient = gradients[next];
      if (!gradient.defined()) gradient = input_metadata(next).zeros_like();
      gradient = laid_out_as(gradient, call_.results[i]);
      operands.push_back(session.value_of(gradient));
      ++next;
    }
    return session.add_call(std::move(node), call_.gradients);
  }

 private:
  RegionCall call_;
  std::vector<torch::autograd::SavedVariable> arguments_, operands_;
};

}  // namespace

RegionGradients differentiate(fake::Session& session, const std::vector<at::Tensor>& results,
                              const std::vector<bool>& needed, const Operands& operands) {
  RegionGradients made;
  Ends ends;
  torch::autograd::edge_list leaves, roots;
  std::vector<at::Tensor> differentiable;
  for (const auto& [id, operand] : operands) {
    if (!operand.requires_grad()) continue;
    const Edge edge = torch::autograd::impl::gradient_edge(operand);
    NodePointer& end = ends[{edge.function.get(), edge.input_nr}];
    if (!end) end = make_autograd_node<End>(operand);
    leaves.emplace_back(end, 0);
    differentiable.push_back(operand);
  }
  std::set<const Node*> seen;
  variable_list tangents;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!needed[i]) continue;
    const at::Tensor& result = results[i];
    const at::Tensor tangent = session.make_tangent(result, "tangents_" + std::to_string(made.tangents.size() + 1));
    made.tangents.push_back(session.value_of(tangent));
    if (!result.requires_grad()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(result));
    if (const auto end = ends.find({roots.back().function.get(), roots.back().input_nr}); end != ends.end()) {
      roots.back() = Edge(end->second, 0);
    } else if (made.refusal = cut_off(roots.back(), ends, seen); !made.refusal.empty()) {
      return made;
    }
    tangents.push_back(tangent);
  }
  variable_list gradients(leaves.size());
  if (!roots.empty()) gradients = run_engine(session, roots, tangents, leaves);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < gradients.size(); ++i) {
    made.gradients.push_back(
        gradients[i].defined() ? gradients[i].contiguous()
                               : at::zeros_like(differentiable[i], at::TensorOptions(), at::MemoryFormat::Contiguous));
  }
  return made;
}

std::vector<at::Tensor> record_call(fake::Session& session, RegionCall call) {
  std::vector<at::Tensor> made = session.add_call(call.node, call.results);
  const std::vector<bool> needed = call.results_need_grad;
  if (std::find(needed.begin(), needed.end(), true) == needed.end()) return made;
  torch::autograd::edge_list edges;
  for (const at::Tensor& operand : call.operands) {
    if (operand.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(operand));
  }
  const NodePointer node = make_autograd_node<BranchNode>(std::move(call), std::move(edges));
  for (size_t i = 0; i < made.size(); ++i) {
    if (needed[i]) torch::autograd::set_history(made[i], node);
  }
  return made;
}

std::string why_no_backward(const Node& node) {
  const auto* region = dynamic_cast<const RegionNode*>(&node);
  return region ? region->refusal() : std::string();
}

}  // namespace magneto::autograd
