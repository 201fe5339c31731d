// Nodes of autograd's graph, looked at.
#pragma once

#include <Python.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <string_view>
#include <typeinfo>
#include <vector>

namespace magneto::autograd {

/// The node is written in Python. (PyTorch does not export its class.)
inline bool is_python(const torch::autograd::Node& node) {
  return std::string_view(typeid(node).name()).find("6PyNode") != std::string_view::npos;
}

/// Somebody watches or changes gradients there.
inline bool has_hooks(torch::autograd::Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty();
}

/// The context of a node that is written in Python: what its backward is called on. Borrowed.
PyObject* context_of(const torch::autograd::Node& node);

/// The torch.autograd.Function of a context; borrowed from it, null where it has none. Needs the GIL.
PyObject* function_of(PyObject* context);

/// The context is of the backward that a custom operator was given (torch.library.register_autograd), which works on
/// stand-ins by contract, and reads its arguments alone. Needs the GIL.
bool belongs_to_operator(PyObject* context);

/// A node in Python whose backward is given None, not zeros, where there is no gradient (set_materialize_grads(False)).
bool takes_none(const torch::autograd::Node& node);

/// A node in Python that has saved tensors for its backward.
bool saves_tensors(const torch::autograd::Node& node);

/// The node stands for what an input of a capture was computed by, before it.
bool is_history(const torch::autograd::Node& node);

/// The node is of an operator that autograd does not know: such as ours that take sizes, whose derivative is that of
/// ATen's operator, which they call in each run. On stand-ins there is none, and PyTorch only warns.
bool lacks_derivative(const torch::autograd::Node& node);

/// On the way from `roots` there is a node of which `what` holds, and that is not behind one of `ends`.
bool passes(const torch::autograd::variable_list& roots, const torch::autograd::variable_list& ends,
            const std::function<bool(const torch::autograd::Node&)>& what);

/// Contexts of the nodes written in Python on the way from `roots`, but for what is behind `ends`; borrowed.
std::vector<PyObject*> contexts_on_way(const torch::autograd::variable_list& roots,
                                       const torch::autograd::variable_list& ends);

/// The engine calls a hook of a tensor there.
bool calls_hooks(const torch::autograd::Node& node);

/// Leaves to which gradients of `roots` come.
torch::autograd::variable_list leaves_of(const torch::autograd::variable_list& roots);

/// By tensor: the number of the node that gives it, among those of all, which are numbered as they were made.
std::vector<size_t> nodes_by_age(const torch::autograd::variable_list& tensors);

/// Code of somebody's is called when a gradient has been added to the leaf's: DistributedDataParallel's, or the
/// program's.
bool has_hooks_behind(const at::Tensor& leaf);

/// What the engine does when nobody asks to retain the graph: drops what the nodes on the way from `roots` to `ends`
/// keep, and those that made ends which are no leaves.
void free_graph(const torch::autograd::variable_list& roots, const torch::autograd::variable_list& ends);

}  // namespace magneto::autograd
