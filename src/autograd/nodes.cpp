#include "autograd/nodes.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/python_function.h>

#include <unordered_set>
#include <vector>

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
  return pybind11::str(module).cast<std::string>() == "torch._library.autograd";
}

bool takes_none(const Node& node) {
  return is_python(node) && !reinterpret_cast<THPFunction*>(context_of(node))->materialize_grads;
}

bool saves_tensors(const Node& node) {
  return is_python(node) && !reinterpret_cast<THPFunction*>(context_of(node))->saved_variables.empty();
}

bool is_history(const Node& node) { return dynamic_cast<const torch::autograd::Error*>(&node) != nullptr; }

bool lacks_derivative(const Node& node) { return node.name().find("NotImplemented") != std::string::npos; }

bool passes(const torch::autograd::variable_list& roots, const torch::autograd::variable_list& ends,
            bool (*what)(const Node&)) {
  std::unordered_set<const Node*> seen;
  for (const at::Tensor& end : ends) seen.insert(torch::autograd::impl::gradient_edge(end).function.get());
  std::vector<const Node*> open;
  const auto meet = [&](const Node* node) {
    if (node && seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& root : roots) meet(torch::autograd::impl::gradient_edge(root).function.get());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (what(*node)) return true;
    for (const auto& next : node->next_edges()) meet(next.function.get());
  }
  return false;
}

}  // namespace magneto::autograd
