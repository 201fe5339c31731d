// Operators whose derivatives read data in PyTorch: called on stand-ins that need gradients they get a node of ours in
// autograd's graph, whose formula is right for all data.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include "fake/autograd_node.h"
#include "fake/dispatch_key.h"

namespace magneto::fake {

/// Of an operator with one tensor and one result. Both are saved.
class OwnGradientNode : public torch::autograd::Node {
 public:
  OwnGradientNode(const char* name, const at::Tensor& self)
      : Node(torch::autograd::collect_next_edges(self)), name_(name), self_(self, /*is_output=*/false) {}

  std::string name() const override { return name_; }
  /// Without its history, which is this node.
  void save_result(const at::Tensor& result) {
    result_ = torch::autograd::SavedVariable(result.tensor_data(), /*is_output=*/false);
  }

  void release_variables() override {
    self_.reset_data();
    result_.reset_data();
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (!gradients.at(0).defined()) return {at::Tensor()};
    return {derivative(gradients[0], self_.unpack(), result_.unpack())};
  }

 protected:
  virtual at::Tensor derivative(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& result) const = 0;

 private:
  const char* name_;
  torch::autograd::SavedVariable self_, result_;
};

/// What is left of a call's dispatch behind our kernels, which lie above all others.
constexpr c10::DispatchKeySet kBelowOwnGradients(c10::DispatchKeySet::FULL_AFTER, kFirstKey);

/// Levels of torch.func, autocast, classes of tensors and forward-mode gradients have PyTorch's way. `dtype`: that the
/// operator computes in, where it is asked for another one than the tensor's.
bool has_own_gradient(c10::DispatchKeySet keys, const at::Tensor& self, std::optional<at::ScalarType> dtype);

/// `call(keys)` runs the operator with these keys; `node_args` follow the node's name and `self` in its constructor.
template <typename OwnNode, typename Call, typename... NodeArgs>
at::Tensor with_own_gradient(c10::DispatchKeySet keys, const at::Tensor& self, std::optional<at::ScalarType> dtype,
                             const char* name, const Call& call, NodeArgs... node_args) {
  if (!has_own_gradient(keys, self, dtype)) return call(keys & kBelowOwnGradients);
  const at::Tensor result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call((keys & kBelowOwnGradients) - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  }();
  const auto node = make_autograd_node<OwnNode>(name, self, node_args...);
  torch::autograd::set_history(result, node);
  node->save_result(result);
  return result;
}

/// Puts our kernels for products (products.cpp), for the largest, smallest and middle element (extremes.cpp) and for
/// what a mask selects (selections.cpp) above all others.
void register_products(torch::Library& whole);
void register_extremes(torch::Library& whole);
void register_selections(torch::Library& whole);

}  // namespace magneto::fake
