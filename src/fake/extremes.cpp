// max(), min(), median() and nanmedian() of all elements. Their gradient goes in equal parts to the elements that have
// the value. PyTorch asks whether that is NaN, which no comparison finds; one mask answers both.
#include <ATen/TensorOperators.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/median_ops.h>
#include <ATen/ops/min_ops.h>
#include <ATen/ops/nanmedian_ops.h>

#include "fake/own_gradients.h"

namespace magneto::fake {

namespace {

class ExtremeNode final : public OwnGradientNode {
 public:
  using OwnGradientNode::OwnGradientNode;

 private:
  at::Tensor derivative(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& result) const override {
    const at::Tensor mask = self.eq(result).logical_or(self.isnan().logical_and(result.isnan()));
    return gradient.new_zeros_symint(self.sym_sizes(), self.options()).masked_fill_(mask, gradient / mask.sum());
  }
};

template <typename Operator>
at::Tensor of_all(const char* name, c10::DispatchKeySet keys, const at::Tensor& self) {
  return with_own_gradient<ExtremeNode>(keys, self, {}, name,
                                        [&](c10::DispatchKeySet below) { return Operator::redispatch(below, self); });
}

at::Tensor max_of_all(c10::DispatchKeySet keys, const at::Tensor& self) {
  return of_all<at::_ops::max>("MaxBackward1", keys, self);
}
at::Tensor min_of_all(c10::DispatchKeySet keys, const at::Tensor& self) {
  return of_all<at::_ops::min>("MinBackward1", keys, self);
}
at::Tensor median_of_all(c10::DispatchKeySet keys, const at::Tensor& self) {
  return of_all<at::_ops::median>("MedianBackward0", keys, self);
}
at::Tensor nanmedian_of_all(c10::DispatchKeySet keys, const at::Tensor& self) {
  return of_all<at::_ops::nanmedian>("NanmedianBackward0", keys, self);
}

}  // namespace

void register_extremes(torch::Library& whole) {
  whole.impl("max", TORCH_FN(max_of_all));
  whole.impl("min", TORCH_FN(min_of_all));
  whole.impl("median", TORCH_FN(median_of_all));
  whole.impl("nanmedian", TORCH_FN(nanmedian_of_all));
}

}  // namespace magneto::fake
