// prod() and cumprod(). PyTorch's derivatives look for zeros among the factors, and take another formula where there
// are some. Each of these is one operator of ours that does so when it runs.
#include <ATen/ops/cumprod_ops.h>
#include <ATen/ops/prod_ops.h>

#include "fake/own_gradients.h"

namespace magneto::fake {

namespace {

using c10::DispatchKeySet;

/// Gradients of these gradients are those of the formula that the data choose.
void choose_formula(const at::Tensor& self) {
  if (at::GradMode::is_enabled()) (void)self.eq(0).any().item();
}

class ProdNode final : public OwnGradientNode {
 public:
  ProdNode(const char* name, const at::Tensor& self, std::optional<int64_t> dim, bool keepdim)
      : OwnGradientNode(name, self), dim_(dim), keepdim_(keepdim) {}

 private:
  at::Tensor derivative(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& result) const override {
    static const auto op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("magneto::prod_backward", "")
            .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, std::optional<int64_t>)>();
    choose_formula(self);
    if (self.dim() == 0) return gradient.clone();
    const bool gone = dim_ && !keepdim_;
    return op.call(gone ? gradient.unsqueeze(*dim_) : gradient, self.to(gradient.scalar_type()),
                   gone ? result.unsqueeze(*dim_) : result, dim_);
  }

  const std::optional<int64_t> dim_;
  const bool keepdim_;
};

class CumprodNode final : public OwnGradientNode {
 public:
  CumprodNode(const char* name, const at::Tensor& self, int64_t dim) : OwnGradientNode(name, self), dim_(dim) {}

 private:
  at::Tensor derivative(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& result) const override {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("magneto::cumprod_backward", "")
                               .typed<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, const at::Tensor&)>();
    choose_formula(self);
    return op.call(gradient.to(self.scalar_type()), self, dim_, result);
  }

  const int64_t dim_;
};

at::Tensor prod(DispatchKeySet keys, const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  const auto call = [&](DispatchKeySet below) { return at::_ops::prod::redispatch(below, self, dtype); };
  return with_own_gradient<ProdNode>(keys, self, dtype, "ProdBackward0", call, std::nullopt, false);
}

at::Tensor prod_dim(DispatchKeySet keys, const at::Tensor& self, int64_t dim, bool keepdim,
                    std::optional<at::ScalarType> dtype) {
  const auto call = [&](DispatchKeySet below) {
    return at::_ops::prod_dim_int::redispatch(below, self, dim, keepdim, dtype);
  };
  return with_own_gradient<ProdNode>(keys, self, dtype, "ProdBackward1", call, dim, keepdim);
}

at::Tensor cumprod(DispatchKeySet keys, const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  const auto call = [&](DispatchKeySet below) { return at::_ops::cumprod::redispatch(below, self, dim, dtype); };
  return with_own_gradient<CumprodNode>(keys, self, dtype, "CumprodBackward0", call, dim);
}

}  // namespace

void register_products(torch::Library& whole) {
  whole.impl("prod", TORCH_FN(prod));
  whole.impl("prod.dim_int", TORCH_FN(prod_dim));
  whole.impl("cumprod", TORCH_FN(cumprod));
}

}  // namespace magneto::fake
