#include "autograd/nodes.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/python_function.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <unordered_set>

namespace magneto::autograd {

using torch::autograd::Node;

namespace {

template <typename PyNode>
PyObject* context(const PyNode& node) {
  if constexpr (requires { node.obj; }) {  // until 2.12 or so
    return node.obj;
  } else {
    return node.pyobj();
  }
}

}  // namespace

PyObject* context_of(const Node& node) { return context(static_cast<const torch::autograd::PyNode&>(node)); }

PyObject* function_of(PyObject* context) {
  const pybind11::object function = pybind11::getattr(context, "_forward_cls", pybind11::none());
  return function.is_none() ? nullptr : function.ptr();  // its class holds it
}

bool belongs_to_operator(PyObject* context) {
  PyObject* function = function_of(context);
  if (!function) return false;
  const pybind11::object module = pybind11::getattr(function, "__module__", pybind11::none());
  const std::string name = pybind11::str(module).cast<std::string>();
  return name == "torch._library.autograd" || name.starts_with("torch.distributed.tensor.");
}

bool takes_none(const Node& node) {
  if (!is_python(node) || reinterpret_cast<THPFunction*>(context_of(node))->materialize_grads) return false;
  return !belongs_to_operator(context_of(node));  // PyTorch's own hand None on
}

bool saves_tensors(const Node& node) {
  return is_python(node) && !reinterpret_cast<THPFunction*>(context_of(node))->saved_variables.empty();
}

bool is_history(const Node& node) { return dynamic_cast<const torch::autograd::Error*>(&node) != nullptr; }

bool lacks_derivative(const Node& node) { return node.name().find("NotImplemented") != std::string::npos; }

namespace {

/// Calls `visit` for each node on the way from `roots`, as long as that says so.
void walk(const torch::autograd::variable_list& roots, std::unordered_set<const Node*> seen,
          const std::function<bool(Node&)>& visit) {
  std::vector<Node*> open;
  const auto meet = [&](Node* node) {
    if (node && seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& root : roots) {
    if (root.requires_grad()) meet(torch::autograd::impl::gradient_edge(root).function.get());
  }
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (!visit(*node)) return;
    for (const auto& next : node->next_edges()) meet(next.function.get());
  }
}

}  // namespace

std::vector<PyObject*> contexts_on_way(const torch::autograd::variable_list& roots,
                                       const torch::autograd::variable_list& ends) {
  std::unordered_set<const Node*> seen;
  for (const at::Tensor& end : ends) seen.insert(torch::autograd::impl::gradient_edge(end).function.get());
  std::vector<PyObject*> contexts;
  walk(roots, std::move(seen), [&](const Node& node) {
    if (is_python(node)) contexts.push_back(context_of(node));
    return true;
  });
  return contexts;
}

bool calls_hooks(const Node& node) { return !const_cast<Node&>(node).tensor_pre_hooks().empty(); }

bool passes(const torch::autograd::variable_list& roots, const torch::autograd::variable_list& ends,
            const std::function<bool(const Node&)>& what) {
  std::unordered_set<const Node*> seen;
  for (const at::Tensor& end : ends) seen.insert(torch::autograd::impl::gradient_edge(end).function.get());
  bool found = false;
  walk(roots, std::move(seen), [&](const Node& node) {
    found = what(node);
    return !found;
  });
  return found;
}

torch::autograd::variable_list leaves_of(const torch::autograd::variable_list& roots) {
  torch::autograd::variable_list leaves;
  walk(roots, {}, [&](Node& node) {
    if (const auto* end = dynamic_cast<torch::autograd::AccumulateGrad*>(&node)) leaves.push_back(end->variable);
    return true;
  });
  return leaves;
}

std::vector<size_t> nodes_by_age(const torch::autograd::variable_list& tensors) {
  const auto made = [](const at::Tensor& tensor) {
    return torch::autograd::impl::gradient_edge(tensor).function->sequence_nr();
  };
  std::set<uint64_t> ages;
  for (const at::Tensor& tensor : tensors) ages.insert(made(tensor));
  std::vector<size_t> numbers;
  for (const at::Tensor& tensor : tensors) numbers.push_back(std::distance(ages.begin(), ages.find(made(tensor))));
  return numbers;
}

bool has_hooks_behind(const at::Tensor& leaf) {
  if (!leaf.requires_grad() || !leaf.is_leaf()) return false;
  if (torch::autograd::impl::post_acc_grad_hooks(leaf)) return true;
  const auto end = torch::autograd::impl::try_get_grad_accumulator(leaf);
  return end && !(end->pre_hooks().empty() && end->post_hooks().empty());
}

void free_graph(const torch::autograd::variable_list& roots, const torch::autograd::variable_list& ends) {
  std::unordered_set<const Node*> leads;
  for (const at::Tensor& end : ends) leads.insert(torch::autograd::impl::gradient_edge(end).function.get());
  std::vector<Node*> nodes;
  walk(roots, {}, [&](Node& node) {
    nodes.push_back(&node);
    return true;
  });
  // Sequence numbers fall from a node to those behind it, but for leaves.
  std::ranges::sort(nodes, {}, &Node::sequence_nr);
  for (Node* node : nodes) {
    const auto on = [&](const auto& next) { return leads.contains(next.function.get()); };
    // An end that is no leaf is called, too.
    if (!leads.contains(node) && !std::ranges::any_of(node->next_edges(), on)) continue;
    leads.insert(node);
    node->release_variables();
  }
}

}  // namespace magneto::autograd
