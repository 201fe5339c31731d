#include "runtime/no_further_gradients.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "fake/autograd_node.h"
#include "runtime/jagged_results.h"

namespace magneto::runtime {

namespace {

using torch::autograd::variable_list;

class NoFurtherGradients final : public torch::autograd::Node {
 public:
  using Node::Node;
  std::string name() const override { return "NoFurtherGradients"; }

 protected:
  variable_list apply(variable_list&&) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "Magneto has no gradients of gradients (create_graph=True) through tensors whose class "
                                "has a __torch_dispatch__: @magneto.disable keeps the function out");
  }
};

}  // namespace

void refuse_further_gradients(variable_list& gradients, const variable_list& ends) {
  torch::autograd::edge_list edges;
  for (const at::Tensor& end : ends) {
    if (end.defined() && end.requires_grad()) edges.push_back(edge_of_input(end));
  }
  const auto node = make_autograd_node<NoFurtherGradients>(std::move(edges));
  for (at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    if (gradient.requires_grad()) gradient = gradient.detach();
    torch::autograd::set_history(gradient, node);
  }
}

}  // namespace magneto::runtime
