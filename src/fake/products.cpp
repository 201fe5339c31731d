#include "fake/products.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cumprod_ops.h>
#include <ATen/ops/prod_ops.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "fake/autograd_node.h"
#include "fake/class_dispatch.h"
#include "fake/dispatch_key.h"
#include "fake/fake_impl.h"

namespace magneto::fake {

namespace {

using c10::DispatchKeySet;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// PyTorch's derivatives look for zeros among the factors, and take another formula where there are some. Each of these
/// is one operator of ours that does so when it runs.
class ProductNode : public torch::autograd::Node {
 public:
  ProductNode(const char* name, const at::Tensor& self, std::optional<int64_t> dim, bool keepdim)
      : Node(torch::autograd::collect_next_edges(self)),
        name_(name),
        dim_(dim),
        keepdim_(keepdim),
        self_(self, /*is_output=*/false) {}

  std::string name() const override { return name_; }
  /// Without its history, which is this node.
  void save_result(const at::Tensor& result) { result_ = SavedVariable(result.tensor_data(), /*is_output=*/false); }

  void release_variables() override {
    self_.reset_data();
    result_.reset_data();
  }

  variable_list apply(variable_list&& gradients) override {
    if (!gradients.at(0).defined()) return {at::Tensor()};
    const at::Tensor self = self_.unpack(), result = result_.unpack();
    // Gradients of these gradients are those of the formula that the data choose.
    if (at::GradMode::is_enabled()) (void)self.eq(0).any().item();
    return {derivative(gradients[0], self, result)};
  }

 protected:
  virtual at::Tensor derivative(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& result) const = 0;

  const char* name_;
  const std::optional<int64_t> dim_;
  const bool keepdim_;

 private:
  SavedVariable self_, result_;
};

class ProdNode final : public ProductNode {
 public:
  using ProductNode::ProductNode;

 private:
  at::Tensor derivative(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& result) const override {
    static const auto op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("magneto::prod_backward", "")
            .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, std::optional<int64_t>)>();
    if (self.dim() == 0) return gradient.clone();
    const bool gone = dim_ && !keepdim_;
    return op.call(gone ? gradient.unsqueeze(*dim_) : gradient, self.to(gradient.scalar_type()),
                   gone ? result.unsqueeze(*dim_) : result, dim_);
  }
};

class CumprodNode final : public ProductNode {
 public:
  using ProductNode::ProductNode;

 private:
  at::Tensor derivative(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& result) const override {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("magneto::cumprod_backward", "")
                               .typed<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, const at::Tensor&)>();
    return op.call(gradient.to(self.scalar_type()), self, *dim_, result);
  }
};

constexpr DispatchKeySet kBelow(DispatchKeySet::FULL_AFTER, kFirstKey);

/// Levels of torch.func, autocast, classes of tensors and forward-mode gradients have PyTorch's way.
bool has_own_gradient(DispatchKeySet keys, const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return c10::isFloatingType(self.scalar_type()) && (!dtype || c10::isFloatingType(*dtype)) &&
         at::GradMode::is_enabled() && self.requires_grad() && as_fake(self) && !has_class_dispatch(self) &&
         !keys.has_any(c10::autocast_dispatch_keyset | kTransformKeys) && !self._fw_grad(/*level=*/0).defined();
}

template <typename Node, typename Call>
at::Tensor with_gradient(DispatchKeySet keys, const at::Tensor& self, const char* name, std::optional<int64_t> dim,
                         bool keepdim, std::optional<at::ScalarType> dtype, const Call& call) {
  if (!has_own_gradient(keys, self, dtype)) return call(keys & kBelow);
  const at::Tensor result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call((keys & kBelow) - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  }();
  const auto node = make_autograd_node<Node>(name, self, dim, keepdim);
  torch::autograd::set_history(result, node);
  node->save_result(result);
  return result;
}

at::Tensor prod(DispatchKeySet keys, const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return with_gradient<ProdNode>(keys, self, "ProdBackward0", {}, false, dtype,
                                 [&](DispatchKeySet below) { return at::_ops::prod::redispatch(below, self, dtype); });
}

at::Tensor prod_dim(DispatchKeySet keys, const at::Tensor& self, int64_t dim, bool keepdim,
                    std::optional<at::ScalarType> dtype) {
  return with_gradient<ProdNode>(keys, self, "ProdBackward1", dim, keepdim, dtype, [&](DispatchKeySet below) {
    return at::_ops::prod_dim_int::redispatch(below, self, dim, keepdim, dtype);
  });
}

at::Tensor cumprod(DispatchKeySet keys, const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  return with_gradient<CumprodNode>(keys, self, "CumprodBackward0", dim, false, dtype, [&](DispatchKeySet below) {
    return at::_ops::cumprod::redispatch(below, self, dim, dtype);
  });
}

}  // namespace

void register_products(torch::Library& whole) {
  whole.impl("prod", TORCH_FN(prod));
  whole.impl("prod.dim_int", TORCH_FN(prod_dim));
  whole.impl("cumprod", TORCH_FN(cumprod));
}

}  // namespace magneto::fake
