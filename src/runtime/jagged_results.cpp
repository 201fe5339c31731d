#include "runtime/jagged_results.h"

#include <ATen/ops/_nested_get_values.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "autograd/distributed_gradients.h"
#include "fake/autograd_node.h"
#include "fake/class_dispatch.h"
#include "runtime/plan/torch_errors.h"
#include "support/tensor_object.h"

namespace magneto::runtime {

namespace {

using torch::autograd::variable_list;

class OfValues final : public torch::autograd::Node {
 public:
  using Node::Node;
  std::string name() const override { return "JaggedResultBackward"; }

 protected:
  variable_list apply(variable_list&& gradients) override {
    return {gradients[0].defined() ? at::_nested_get_values(gradients[0]) : at::Tensor()};
  }
};

PyObject* with_history(PyObject*, PyObject* args) {
  PyObject* const given = PyTuple_GET_ITEM(args, 0);
  const at::Tensor &jagged = unpack_tensor(given), &values = unpack_tensor(PyTuple_GET_ITEM(args, 1));
  const bool ok = with_torch_errors([&] {
    if (!values.requires_grad()) return;
    torch::autograd::edge_list edges = {torch::autograd::impl::gradient_edge(values)};
    torch::autograd::set_history(jagged, make_autograd_node<OfValues>(std::move(edges)));
  });
  return ok ? Py_NewRef(given) : nullptr;
}

}  // namespace

PyMethodDef kWithHistoryOfValues = {"with_history_of_values", with_history, METH_VARARGS,
                                    "The jagged tensor, with the history of its values."};

torch::autograd::Edge edge_of_input(const at::Tensor& input, PyObject* placements) {
  if (autograd::is_dtensor(input)) return autograd::edge_of_local(input, placements);
  if (!fake::is_jagged(input)) return torch::autograd::impl::gradient_edge(input);
  const c10::AutoGradMode with_grad(true);
  return torch::autograd::impl::gradient_edge(at::_nested_get_values(input));
}

}  // namespace magneto::runtime
