#include "runtime/backward_inside.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "autograd/nodes.h"
#include "python/imported.h"
#include "runtime/plan/plan.h"

namespace magneto::runtime {

namespace {

[[noreturn]] void leave_to_cpython(const char* why) {
  PyErr_Format(PyExc_RuntimeError, "%s%s", kNotSo, why);
  throw ComputationError{};
}

}  // namespace

BackwardInside::BackwardInside(const graph::Graph& graph) : inputs_(graph.inputs.size()) {
  static constinit Imported backward("magneto._forward", "gradients_of");
  for (const graph::TorchNode& node : graph.torch_nodes) {
    if (node.target.get() != backward.get()) continue;
    any_ = true;
    for (const graph::PyArg& end : node.args.at(1).items) add_leaf(graph, end.value);
  }
}

BackwardInside::BackwardInside(const graph::Graph& graph, const std::vector<graph::ValueId>& leaves)
    : any_(true), inputs_(graph.inputs.size()) {
  for (const graph::ValueId leaf : leaves) add_leaf(graph, leaf);
}

void BackwardInside::add_leaf(const graph::Graph& graph, graph::ValueId leaf) {
  const auto input = std::ranges::find(graph.inputs, leaf);
  if (input != graph.inputs.end()) leaves_.push_back(input - graph.inputs.begin());
}

void BackwardInside::refuse(PyObject* const* inputs) const {
  if (!any_) return;
  for (const size_t leaf : leaves_) {
    if (!THPVariable_Unpack(inputs[leaf]).is_leaf()) leave_to_cpython("leaves were not computed before the call");
  }
  for (size_t i = 0; i < inputs_; ++i) {
    if (!autograd::has_hooks_behind(THPVariable_Unpack(inputs[i]))) continue;
    leave_to_cpython("no hooks run when gradients are added to a tensor's");
  }
}

}  // namespace magneto::runtime
