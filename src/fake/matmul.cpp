// The operators that torch.matmul is made of: those that eager runs. PyTorch's own choice asks for plain sizes before
// version 2.13; here symbols answer.
#include "fake/matmul.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>

#include "fake/class_dispatch.h"
#include "fake/dispatch_key.h"
#include "fake/fake_impl.h"
#include "fake/symbolic.h"

namespace magneto::fake {

namespace {

using c10::SymInt;

bool has_symbols(const at::Tensor& tensor) {
  const FakeImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr;
  return fake && fake->symbolic();
}

/// A stack of matrices lies in memory like one large matrix.
bool is_one_matrix(const at::Tensor& stack) {
  if (stack.sym_numel() == 0) return true;
  const c10::SymIntArrayRef sizes = stack.sym_sizes(), strides = stack.sym_strides();
  for (int64_t i = 0; i + 2 < stack.dim(); ++i) {
    if (strides[i] != strides[i + 1] * sizes[i + 1]) return false;
  }
  return true;
}

/// `stack`, of three dimensions or more, and a matrix or a vector: whether PyTorch computes one product of two
/// matrices. Where the smaller operand needs a gradient, a copy of the stack costs less than the gradient of its
/// expansion.
bool folds(const at::Tensor& stack, const at::Tensor& other, bool stack_first) {
  if (other.requires_grad()) return true;
  return (stack_first || other.dim() == 1) && is_one_matrix(stack_first ? stack : stack.mT());
}

SymSizes without_last(const at::Tensor& tensor, int64_t count) {
  return {tensor.sym_sizes().begin(), tensor.sym_sizes().end() - count};
}

SymInt product(const SymSizes& sizes) {
  SymInt all = 1;
  for (const SymInt& size : sizes) all *= size;
  return all;
}

at::Tensor folded(const at::Tensor& stack, const at::Tensor& other) {
  SymSizes sizes = without_last(stack, 1);
  const at::Tensor matrix = stack.reshape_symint({product(sizes), stack.sym_size(-1)});
  if (other.dim() == 1) return at::_unsafe_view_symint(matrix.mv(other), sizes);
  sizes.push_back(other.sym_size(1));
  return at::_unsafe_view_symint(matrix.mm(other), sizes);
}

/// A product for each pair of matrices; a vector is a matrix of one row or column.
at::Tensor paired(const at::Tensor& self, const at::Tensor& other) {
  const bool row = self.dim() == 1, column = other.dim() == 1;
  const SymInt n = row ? SymInt(1) : self.sym_size(-2), p = column ? SymInt(1) : other.sym_size(-1);
  const SymInt m1 = self.sym_size(-1), m2 = other.sym_size(column ? -1 : -2);
  SymSizes sizes = at::infer_size_symdimvector(row ? SymSizes{} : without_last(self, 2),
                                               column ? SymSizes{} : without_last(other, 2));
  const SymInt count = product(sizes);
  const auto expanded = [&](const at::Tensor& tensor, std::initializer_list<SymInt> last) {
    SymSizes all = sizes;
    all.insert(all.end(), last);
    return tensor.expand_symint(all);
  };
  const at::Tensor left = expanded(self, {n, m1}).reshape_symint({count, n, m1});
  const at::Tensor right = column ? expanded(other, {m2}).reshape_symint({count, m2}).unsqueeze(2)
                                  : expanded(other, {m2, p}).reshape_symint({count, m2, p});
  if (!row) sizes.push_back(n);
  if (!column) sizes.push_back(p);
  const at::Tensor products = left.bmm(right);
  return at::_unsafe_view_symint(column ? products.squeeze(-1) : products, sizes);
}

at::Tensor symbolic_matmul(const at::Tensor& self, const at::Tensor& other) {
  const bool self_first = self.dim() >= other.dim();
  const at::Tensor &stack = self_first ? self : other, &lesser = self_first ? other : self;
  if (lesser.dim() <= 2 && folds(stack, lesser, self_first)) {
    if (self_first) return folded(self, other);
    const at::Tensor turned = folded(other.mT(), self.dim() == 2 ? self.t() : self);
    return self.dim() == 2 ? turned.mT().contiguous() : turned;
  }
  // Of three dimensions each, a single matrix that needs a gradient is not expanded either.
  if (self.dim() == 3 && other.dim() == 3 && self.sym_size(0) != other.sym_size(0)) {
    if (self.sym_size(0) == 1 && self.requires_grad()) return symbolic_matmul(self.squeeze(0), other);
    if (other.sym_size(0) == 1 && other.requires_grad()) return symbolic_matmul(self, other.squeeze(0));
  }
  return paired(self, other);
}

at::Tensor matmul(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& other) {
  const bool ours = !has_class_dispatch(self) && !has_class_dispatch(other) &&
                    !keys.has_any(c10::autocast_dispatch_keyset | kTransformKeys);
  // PyTorch takes the row's dimension away in place, which graphs have no form for.
  if (ours && self.dim() == 1 && other.dim() == 2) return self.unsqueeze(0).mm(other).squeeze(0);
  const bool sized = (has_symbols(self) || has_symbols(other)) && std::max(self.dim(), other.dim()) >= 3 &&
                     std::min(self.dim(), other.dim()) >= 1;
  if (ours && sized) return symbolic_matmul(self, other);
  return at::_ops::matmul::redispatch(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kFirstKey), self,
                                      other);
}

}  // namespace

void register_matmul(torch::Library& whole) { whole.impl("matmul", TORCH_FN(matmul)); }

}  // namespace magneto::fake
