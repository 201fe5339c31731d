#include "autograd/leftover_tasks.h"

#include <ATen/EmptyTensor.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include "fake/autograd_node.h"
#include "support/gil.h"

namespace magneto::autograd {

namespace {

/// Does nothing, after all other tasks: those with higher sequence numbers come first.
class Last final : public torch::autograd::Node {
 public:
  explicit Last(const at::Tensor& gradient) : Node(/*sequence_nr=*/0, {}) { add_input_metadata(gradient); }
  std::string name() const override { return "magneto::Last"; }

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
};

}  // namespace

void drop_leftover_tasks() {
  // Made past the dispatcher, where a capture would see it.
  const torch::autograd::variable_list gradients = {at::detail::empty_cpu({0}, at::kFloat)};
  const torch::autograd::edge_list roots = {{make_autograd_node<Last>(gradients[0]), 0}};
  const WithoutGil no_gil;
  try {
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true);
  } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch)
    // In a forked child of a process whose engine has threads for devices it runs nothing: nothing is left either.
  }
}

}  // namespace magneto::autograd
