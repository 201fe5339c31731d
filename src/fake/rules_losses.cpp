// Losses, and distances of points. What their kernels refuse, and other devices, the rules decline.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>

#include "fake/elementwise.h"

namespace magneto::fake {
namespace {

bool is_plain(const at::Tensor& tensor, DtypeSet dtypes = kFloats) {
  return tensor.is_cpu() && (class_of(tensor.scalar_type()) & dtypes);
}

bool is_reduced(const Call& call, size_t reduction) { return call.integer(reduction) != at::Reduction::None; }

void add(Call& call, at::IntArrayRef sizes, const at::Tensor& like) {
  call.result(call.empty(sizes, like.scalar_type(), like.device()));
}

/// binary_cross_entropy(self, target, weight=None, reduction=Mean).
bool binary_cross_entropy(Call& call) {
  const at::Tensor &self = call.tensor(0), &target = call.tensor(1), weight = call.optional_tensor(2);
  if (!is_plain(self) || self.scalar_type() != target.scalar_type() || self.sizes() != target.sizes()) return false;
  if (weight.defined() && (weight.scalar_type() != self.scalar_type() || weight.sizes() != self.sizes())) return false;
  if (is_reduced(call, 3)) {
    add(call, {}, self);
  } else {
    call.result(new_like(call, self, self.scalar_type(), self.device()));
  }
  return true;
}

/// huber_loss(self, target, reduction=Mean, delta=1.0).
bool huber_loss(Call& call) {
  const at::Tensor &self = call.tensor(0), &target = call.tensor(1);
  if (!is_plain(self) || self.scalar_type() != target.scalar_type() || self.sizes() != target.sizes()) return false;
  if (call.arg(3).toDouble() <= 0) return false;
  if (is_reduced(call, 2)) {
    add(call, {}, self);
  } else {
    call.result(new_like(call, self, self.scalar_type(), self.device()));
  }
  return true;
}

/// soft_margin_loss(self, target, reduction=Mean).
bool soft_margin_loss(Call& call) {
  const at::Tensor &self = call.tensor(0), &target = call.tensor(1);
  if (!is_plain(self) || self.scalar_type() != target.scalar_type() || self.sizes() != target.sizes()) return false;
  if (is_reduced(call, 2)) {
    add(call, {}, self);
  } else {
    const Layout layout = elementwise_layout({Geometry(self)});
    call.result(call.empty(layout.sizes, layout.strides, self.scalar_type(), self.device()));
  }
  return true;
}

/// multi_margin_loss(self, target, p=1, margin=1, weight=None, reduction=Mean).
bool multi_margin_loss(Call& call) {
  const at::Tensor &self = call.tensor(0), &target = call.tensor(1), weight = call.optional_tensor(4);
  if (!is_plain(self, kSingles) || self.dim() != 2 || self.numel() == 0 || target.scalar_type() != c10::kLong) {
    return false;
  }
  if (target.dim() != 1 || target.numel() != self.size(0)) return false;
  if (weight.defined() && (weight.dim() != 1 || weight.numel() != self.size(1))) return false;
  const c10::Scalar p = call.arg(2).toScalar();
  if (!p.equal(1) && !p.equal(2)) return false;
  if (is_reduced(call, 5)) {
    add(call, {}, self);
  } else {
    add(call, {self.size(0)}, self);
  }
  return true;
}

/// multilabel_margin_loss_forward(self, target, reduction): the loss, and which classes are targets.
bool multilabel_margin_loss(Call& call) {
  const at::Tensor &self = call.tensor(0), &target = call.tensor(1);
  if (!is_plain(self, kSingles) || self.dim() != 2 || self.numel() == 0 || target.scalar_type() != c10::kLong) {
    return false;
  }
  if (target.sizes() != self.sizes()) return false;
  if (is_reduced(call, 2)) {
    add(call, {}, self);
  } else {
    add(call, {self.size(0)}, self);
  }
  add(call, target.sizes(), self);
  return true;
}

/// nll_loss2d_forward(self, target, weight, reduction, ignore_index): the loss, and the sum of the weights.
bool nll_loss2d(Call& call) {
  const at::Tensor &self = call.tensor(0), &target = call.tensor(1), weight = call.optional_tensor(2);
  if (!is_plain(self) || self.dim() != 4 || target.dim() != 3 || target.scalar_type() != c10::kLong) return false;
  const at::DimVector sizes{self.size(0), self.size(2), self.size(3)};
  if (target.sizes() != at::IntArrayRef(sizes) || self.numel() == 0) return false;
  if (weight.defined() && (weight.numel() != self.size(1) || weight.scalar_type() != self.scalar_type())) return false;
  if (is_reduced(call, 3)) {
    add(call, {}, self);
  } else {
    add(call, sizes, self);
  }
  add(call, {}, self);
  return true;
}

/// _cdist_forward(x1, x2, p, compute_mode).
bool cdist(Call& call) {
  const at::Tensor &left = call.tensor(0), &right = call.tensor(1);
  if (!is_plain(left, kSingles) || left.scalar_type() != right.scalar_type() || !right.is_cpu()) return false;
  if (left.dim() < 2 || right.dim() < 2 || left.size(-1) != right.size(-1) || call.arg(2).toDouble() < 0) return false;
  if (left.numel() == 0 || right.numel() == 0) return false;
  at::DimVector sizes =
      at::infer_size_dimvector(left.sizes().slice(0, left.dim() - 2), right.sizes().slice(0, right.dim() - 2));
  sizes.push_back(left.size(-2));
  sizes.push_back(right.size(-2));
  add(call, sizes, left);
  return true;
}

/// _pdist_forward(self, p).
bool pdist(Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (!is_plain(self, kSingles) || self.dim() != 2 || !self.is_contiguous() || call.arg(1).toDouble() < 0) return false;
  const int64_t count = self.size(0);
  if (count < 2 || self.size(1) == 0) return false;
  add(call, {count * (count - 1) / 2}, self);
  return true;
}

constexpr RuleRow rows[] = {
#define ROW_shape_losses(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const RuleRow> losses_rules() { return rows; }

}  // namespace magneto::fake
