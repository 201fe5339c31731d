// PyTorch computes such a product as one of two matrices, where the stack lies in memory like one. Versions before 2.13
// ask for plain sizes on the way; here symbols answer, and the operators are those that eager runs.
#include "fake/matmul.h"

#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>

#include "fake/dispatch_key.h"
#include "fake/fake_impl.h"
#include "fake/symbolic.h"

namespace magneto::fake {

namespace {

bool has_symbols(const at::Tensor& tensor) {
  const FakeImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr;
  return fake && fake->symbolic();
}

/// As PyTorch's should_fold, for a first operand that has more dimensions.
bool folds(const at::Tensor& stack, const at::Tensor& other) {
  if (other.requires_grad()) return true;
  for (const c10::SymInt& size : stack.sym_sizes()) {
    if (size == 0) return true;
  }
  const c10::SymIntArrayRef sizes = stack.sym_sizes(), strides = stack.sym_strides();
  for (int64_t i = 0; i + 2 < stack.dim(); ++i) {
    if (strides[i] != strides[i + 1] * sizes[i + 1]) return false;
  }
  return true;
}

at::Tensor matmul(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& other) {
  const bool autocast = keys.has_any(c10::autocast_dispatch_keyset);
  const bool stacked = self.dim() >= 3 && (other.dim() == 1 || other.dim() == 2);
  if (autocast || !stacked || !(has_symbols(self) || has_symbols(other)) || !folds(self, other)) {
    return at::_ops::matmul::redispatch(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kFirstKey), self,
                                        other);
  }
  SymSizes sizes(self.sym_sizes().begin(), self.sym_sizes().end() - 1);
  c10::SymInt rows = 1;
  for (const c10::SymInt& size : sizes) rows *= size;
  const at::Tensor matrix = self.reshape_symint({rows, self.sym_size(-1)});
  if (other.dim() == 1) return at::_unsafe_view_symint(matrix.mv(other), sizes);
  sizes.push_back(other.sym_size(1));
  return at::_unsafe_view_symint(matrix.mm(other), sizes);
}

}  // namespace

void register_matmul(torch::Library& whole) { whole.impl("matmul", TORCH_FN(matmul)); }

}  // namespace magneto::fake
