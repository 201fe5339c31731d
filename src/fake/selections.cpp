// masked_select. PyTorch's derivative asks for plain sizes, to know which shape tensor and mask broadcast to.
#include <ATen/ops/masked_select_ops.h>
#include <ATen/ops/zeros_like.h>

#include "fake/own_gradients.h"
#include "fake/symbolic_rules.h"

namespace magneto::fake {

namespace {

class MaskedSelectNode final : public OwnGradientNode {
 public:
  MaskedSelectNode(const char* name, const at::Tensor& self, const at::Tensor& mask)
      : OwnGradientNode(name, self), mask_(mask, /*is_output=*/false) {}

  void release_variables() override {
    OwnGradientNode::release_variables();
    mask_.reset_data();
  }

 private:
  at::Tensor derivative(const at::Tensor& gradient, const at::Tensor& self,
                        const at::Tensor& /*result*/) const override {
    const at::Tensor mask = mask_.unpack();
    const at::Tensor all = self.expand_symint(broadcast_sizes(self.sym_sizes(), mask.sym_sizes()));
    return at::zeros_like(all, {}, at::MemoryFormat::Preserve).masked_scatter_(mask, gradient);
  }

  torch::autograd::SavedVariable mask_;
};

at::Tensor masked_select(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& mask) {
  const auto call = [&](c10::DispatchKeySet below) { return at::_ops::masked_select::redispatch(below, self, mask); };
  return with_own_gradient<MaskedSelectNode>(keys, self, {}, "MaskedSelectBackward0", call, mask);
}

}  // namespace

void register_selections(torch::Library& whole) { whole.impl("masked_select", TORCH_FN(masked_select)); }

}  // namespace magneto::fake
