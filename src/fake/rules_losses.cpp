// Losses, and distances of points. What their kernels refuse, and other devices, the rules decline.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>

#include "fake/shape_rules.h"

namespace magneto::fake {
namespace {

template <class C>
bool is_reduced(const C& call, size_t reduction) {
  return call.integer(reduction) != at::Reduction::None;
}

template <class C>
bool add(C& call, const Sizes<C>& sizes, const at::Tensor& like) {
  return add(call, sizes, like.scalar_type(), like.device());
}

/// A number for each, or one for all.
template <class C>
bool add_loss(C& call, const Sizes<C>& sizes, bool reduced) {
  return add(call, reduced ? Sizes<C>() : sizes, call.tensor(0));
}

template <class C>
bool are_of_one_size(const at::Tensor& a, const at::Tensor& b) {
  return are_equal(sizes_of<C>(a), sizes_of<C>(b));
}

/// binary_cross_entropy(self, target, weight=None, reduction=Mean).
template <class C>
bool binary_cross_entropy(C& call) {
  const at::Tensor &self = call.tensor(0), &target = call.tensor(1), weight = call.optional_tensor(2);
  if (kPlain<C> && (!is_plain(self) || self.scalar_type() != target.scalar_type())) return false;
  if (!are_of_one_size<C>(self, target)) return false;
  if (kPlain<C> && weight.defined() && (weight.scalar_type() != self.scalar_type() || weight.sizes() != self.sizes())) {
    return false;
  }
  return is_reduced(call, 3) ? add(call, {}, self) : add_like(call, self, self.scalar_type(), self.device());
}

/// huber_loss(self, target, reduction=Mean, delta=1.0).
template <class C>
bool huber_loss(C& call) {
  const at::Tensor &self = call.tensor(0), &target = call.tensor(1);
  if (kPlain<C> && (!is_plain(self) || self.scalar_type() != target.scalar_type())) return false;
  if (!are_of_one_size<C>(self, target) || (kPlain<C> && call.arg(3).toDouble() <= 0)) return false;
  return is_reduced(call, 2) ? add(call, {}, self) : add_like(call, self, self.scalar_type(), self.device());
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
template <class C>
bool multi_margin_loss(C& call) {
  const at::Tensor &self = call.tensor(0), &target = call.tensor(1), weight = call.optional_tensor(4);
  if constexpr (kPlain<C>) {
    if (!is_plain(self, kSingles) || self.dim() != 2 || self.numel() == 0) return false;
    if (target.scalar_type() != c10::kLong || target.dim() != 1) return false;
    if (weight.defined() && (weight.dim() != 1 || weight.numel() != self.size(1))) return false;
    const c10::Scalar p = call.arg(2).toScalar();
    if (!p.equal(1) && !p.equal(2)) return false;
  }
  if (numel_of<C>(target) != size_of<C>(self, 0)) return false;
  return add_loss(call, sizes_of<C>(target), is_reduced(call, 5));
}

/// multilabel_margin_loss_forward(self, target, reduction): the loss, and which classes are targets.
bool multilabel_margin_loss(Call& call) {
  const at::Tensor &self = call.tensor(0), &target = call.tensor(1);
  if (!is_plain(self, kSingles) || self.dim() != 2 || self.numel() == 0 || target.scalar_type() != c10::kLong) {
    return false;
  }
  if (target.sizes() != self.sizes()) return false;
  return add_loss(call, {self.size(0)}, is_reduced(call, 2)) && add(call, sizes_of<Call>(target), self);
}

/// nll_loss2d_forward(self, target, weight, reduction, ignore_index): the loss, and the sum of the weights.
template <class C>
bool nll_loss2d(C& call) {
  const at::Tensor &self = call.tensor(0), &target = call.tensor(1), weight = call.optional_tensor(2);
  if (self.dim() != 4 || target.dim() != 3) return false;
  const auto sizes = sizes_of<C>(self), places = sizes_of<C>(target);
  if (!are_equal(places, Sizes<C>{sizes[0], sizes[2], sizes[3]})) return false;
  if constexpr (kPlain<C>) {
    if (!is_plain(self) || target.scalar_type() != c10::kLong || self.numel() == 0) return false;
    if (weight.defined() && (weight.numel() != self.size(1) || weight.scalar_type() != self.scalar_type())) {
      return false;
    }
  }
  return add_loss(call, places, is_reduced(call, 3)) && add(call, {}, self);
}

/// _cdist_forward(x1, x2, p, compute_mode): a distance for each pair of rows.
template <class C>
bool cdist(C& call) {
  const at::Tensor &left = call.tensor(0), &right = call.tensor(1);
  if (left.dim() < 2 || right.dim() < 2) return false;
  const auto a = sizes_of<C>(left), b = sizes_of<C>(right);
  if (a.back() != b.back()) return false;
  if constexpr (kPlain<C>) {
    if (!is_plain(left, kSingles) || left.scalar_type() != right.scalar_type() || !right.is_cpu()) return false;
    if (call.arg(2).toDouble() < 0 || left.numel() == 0 || right.numel() == 0) return false;
  }
  using List = at::ArrayRef<Size<C>>;
  auto sizes = broadcast(List(a).slice(0, a.size() - 2), List(b).slice(0, b.size() - 2));
  sizes.push_back(a[a.size() - 2]);
  sizes.push_back(b[b.size() - 2]);
  return add(call, sizes, left);
}

/// _pdist_forward(self, p).
bool pdist(Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (!is_plain(self, kSingles) || self.dim() != 2 || !self.is_contiguous() || call.arg(1).toDouble() < 0) return false;
  const int64_t count = self.size(0);
  if (count < 2 || self.size(1) == 0) return false;
  return add(call, {count * (count - 1) / 2}, self);
}

/// _ctc_loss_backward(Tensor grad, Tensor log_probs, ...).
template <class C>
bool ctc_loss_backward(C& call) {
  const at::Tensor& log_probs = call.tensor(1);
  return add(call, sizes_of<C>(log_probs), log_probs);
}

/// (grad, self, target, reduction), of the sizes that the forward has: row-major.
bool mse_loss_backward(Call& call) {
  const at::Tensor &grad = call.tensor(0), &self = call.tensor(1), &target = call.tensor(2);
  const bool usual = self.is_cpu() && c10::isFloatingType(self.scalar_type()) && self.sizes() == target.sizes() &&
                     target.scalar_type() == self.scalar_type() && grad.scalar_type() == self.scalar_type() &&
                     at::is_expandable_to(grad.sizes(), self.sizes());
  return usual && add(call, sizes_of<Call>(self), self);
}

/// (grad, self, ...): row-major like `self`, where that is so and the forward has accepted it.
bool row_major_gradient(Call& call) {
  const at::Tensor &grad = call.tensor(0), &self = call.tensor(1);
  const bool usual = grad.defined() && self.is_cpu() && c10::isFloatingType(self.scalar_type()) && self.numel() > 0 &&
                     self.strides() == c10::contiguous_strides(self.sizes()) &&
                     grad.scalar_type() == self.scalar_type();
  return usual && add(call, sizes_of<Call>(self), self);
}

/// (grad, self, target, ...): likewise, where nothing is broadcast but the gradient.
bool row_major_loss_gradient(Call& call) {
  const at::Tensor &self = call.tensor(1), &target = call.tensor(2);
  return self.sizes() == target.sizes() && target.is_contiguous() && target.scalar_type() == self.scalar_type() &&
         at::is_expandable_to(call.tensor(0).sizes(), self.sizes()) && row_major_gradient(call);
}

}  // namespace

std::span<const RuleRow> losses_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_losses(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_losses_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_losses(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
