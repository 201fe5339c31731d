#include "runtime/freed_results.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "autograd/node_types.h"
#include "fake/autograd_node.h"

namespace magneto::runtime {

namespace {

class FreedNode final : public torch::autograd::Node {
 public:
  FreedNode(std::string error, torch::autograd::edge_list&& leaves)
      : Node(std::move(leaves)), error_(std::move(error)) {}
  std::string name() const override { return "CompiledFunctionBackward"; }

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { TORCH_CHECK(false, error_); }

 private:
  const std::string error_;
};

}  // namespace

void set_freed_history(at::Tensor& result, const FreedRoot& freed, const std::vector<at::Tensor>& inputs) {
  [[maybe_unused]] static const bool shown = (autograd::show_as_compiled_function(typeid(FreedNode)), true);
  torch::autograd::edge_list leaves;
  for (const size_t leaf : freed.leaves) leaves.push_back(torch::autograd::impl::gradient_edge(inputs[leaf]));
  // A view of memory that nobody else has: autograd would take its base for a leaf.
  if (result.is_view()) result = result.variable_data();
  torch::autograd::set_history(result, make_autograd_node<FreedNode>(freed.error, std::move(leaves)));
}

}  // namespace magneto::runtime
