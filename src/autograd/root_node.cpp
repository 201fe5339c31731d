#include "autograd/root_node.h"

#include <torch/csrc/autograd/python_hook.h>

#include <algorithm>
#include <string_view>
#include <typeinfo>

namespace magneto::autograd {

namespace {

/// The hook is on that result of the node, or nobody knows on which. (PyTorch does not export the class.)
bool is_on(const torch::autograd::FunctionPreHook& hook, size_t result) {
  constexpr std::string_view kPython = "N5torch8autograd23PyFunctionTensorPreHookE";
  if (typeid(hook).name() != kPython) return true;
  return static_cast<const torch::autograd::PyFunctionTensorPreHook&>(hook).value_idx == result;
}

}  // namespace

bool RootHooks::has(size_t root) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto has_hook = [&](const RootNode* node) { return node->has_hook(root); };
  return left_.contains(root) || std::ranges::any_of(nodes_, has_hook);
}

RootNode::RootNode(torch::autograd::edge_list&& edges, std::vector<size_t> roots, std::shared_ptr<RootHooks> hooks)
    : Node(std::move(edges)), roots_(std::move(roots)), hooks_(std::move(hooks)) {
  if (!hooks_) return;
  const std::lock_guard<std::mutex> lock(hooks_->mutex_);
  hooks_->nodes_.push_back(this);
}

RootNode::~RootNode() {
  if (!hooks_) return;
  const std::lock_guard<std::mutex> lock(hooks_->mutex_);
  std::erase(hooks_->nodes_, this);
  for (const size_t root : roots_) {
    if (has_hook(root)) hooks_->left_.insert(root);
  }
}

bool RootNode::has_hook(size_t root) const {
  const auto place = std::ranges::find(roots_, root);
  if (place == roots_.end()) return false;
  const auto result = static_cast<size_t>(place - roots_.begin());
  auto& node = const_cast<RootNode&>(*this);  // PyTorch's accessors of hooks are not const
  const auto on = [&](const auto& hook) { return is_on(*hook, result); };
  return std::ranges::any_of(node.tensor_pre_hooks(), on) || node.retains_grad_hooks().contains(result);
}

torch::autograd::edge_list edges_of_roots(const NodePointer& node, const torch::autograd::variable_list& roots,
                                          const std::vector<size_t>& nodes, const std::shared_ptr<RootHooks>& hooks) {
  torch::autograd::edge_list edges;
  for (size_t root = 0; root < roots.size(); ++root) edges.emplace_back(node, static_cast<uint32_t>(root));
  const size_t count = nodes.empty() ? 0 : *std::ranges::max_element(nodes) + 1;
  for (size_t number = 0; number < count && count > 1; ++number) {
    torch::autograd::edge_list through;
    std::vector<size_t> own;
    for (size_t root = 0; root < roots.size(); ++root) {
      if (nodes[root] != number) continue;
      own.push_back(root);
      through.push_back(edges[root]);
    }
    const auto made = make_autograd_node<RootNode>(std::move(through), own, hooks);
    for (const size_t root : own) edges[root] = {made, made->add_input_metadata(roots[root])};
  }
  return edges;
}

}  // namespace magneto::autograd
