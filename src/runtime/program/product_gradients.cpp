// The derivatives of products, as PyTorch computes them (FunctionsManual.cpp): which formula it is, the data say.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

namespace magneto::runtime {

namespace {

/// The products of all other factors: of those in front times those behind.
at::Tensor products_of_others(const at::Tensor& gradient, const at::Tensor& self, int64_t dim) {
  if (self.numel() == 0) return at::zeros_like(self);
  const int64_t size = self.size(dim);
  if (size == 1) return gradient;
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[static_cast<size_t>(dim)] = 1;
  const at::Tensor one = at::ones(sizes, gradient.options());
  const at::Tensor in_front = at::cat({one, self.narrow(dim, 0, size - 1)}, dim).cumprod(dim);
  const at::Tensor behind = at::cat({one, self.narrow(dim, 1, size - 1).flip(dim)}, dim).cumprod(dim).flip(dim);
  return gradient.mul(in_front.mul(behind));
}

/// `dim`: none for the product of all. `gradient` and `result` have a dimension of one element there.
at::Tensor prod_backward(const at::Tensor& gradient, const at::Tensor& self, const at::Tensor& result,
                         std::optional<int64_t> dim) {
  // The strides are those of the formula without zeros, in one step: the capture went on with them.
  at::Tensor made = gradient.mul(self);
  at::mul_out(made, gradient, result.div(self));
  const auto zeros = self.eq(0).sum().item<int64_t>();
  if (zeros == 0) return made;
  if (dim) {
    const int64_t at = at::maybe_wrap_dim(*dim, self.dim());
    return made.copy_(products_of_others(gradient, self, at));
  }
  if (zeros > 1) return made.zero_();
  return made.copy_(products_of_others(gradient, self.contiguous().view(-1), 0).view_as(self));
}

at::Tensor sums_from_behind(const at::Tensor& values, int64_t dim) { return values.flip(dim).cumsum(dim).flip(dim); }

/// Up to the first zero as without zeros, and there the products up to the second one without it.
at::Tensor cumprod_backward_of_zeros(const at::Tensor& gradient, const at::Tensor& self, int64_t dim,
                                     const at::Tensor& result, const at::Tensor& is_zero) {
  const at::Tensor weighed = result.mul(gradient);
  at::Tensor made = at::zeros(self.sizes(), gradient.options());
  const at::Tensor zeros = is_zero.cumsum(dim);
  at::Tensor mask = zeros.eq(0);
  made.masked_scatter_(
      mask, sums_from_behind(weighed.masked_fill(mask.bitwise_not(), 0.), dim).div_(self).masked_select(mask));
  mask = zeros.eq(1);
  const at::Tensor first = std::get<1>(mask.max(dim, /*keepdim=*/true));
  const at::Tensor at_first = at::zeros_like(mask).scatter_(dim, first, 1).logical_and_(mask);
  mask.bitwise_and_(at_first.bitwise_not());
  made.masked_scatter_(at_first, self.masked_fill(mask.bitwise_not(), 1.)
                                     .cumprod(dim)
                                     .mul_(gradient.masked_fill(zeros.ne(1), 0.))
                                     .sum(dim, /*keepdim=*/true)
                                     .mul_(at::gather(result, dim, first.sub(1).relu_()).masked_fill_(first.eq(0), 1.))
                                     .masked_select(at_first));
  return made;
}

at::Tensor cumprod_backward(const at::Tensor& gradient, const at::Tensor& self, int64_t dim, const at::Tensor& result) {
  at::Tensor made;
  if (self.numel() <= 1 || self.size(at::maybe_wrap_dim(dim, self.dim())) == 1) {
    made = gradient;
  } else {
    dim = at::maybe_wrap_dim(dim, self.dim());
    const at::Tensor is_zero = self.eq(0);
    made = is_zero.any().item<bool>() ? cumprod_backward_of_zeros(gradient, self, dim, result, is_zero)
                                      : sums_from_behind(result.mul(gradient), dim).div(self);
  }
  // Contiguous, as the capture went on with, in memory of its own.
  return at::empty(self.sizes(), self.options().dtype(c10::promoteTypes(self.scalar_type(), result.scalar_type())))
      .copy_(made);
}

TORCH_LIBRARY_FRAGMENT(magneto, library) {
  library.def("prod_backward(Tensor gradient, Tensor self, Tensor result, int? dim) -> Tensor");
  library.impl("prod_backward", c10::DispatchKey::CompositeExplicitAutograd, prod_backward);
  library.def("cumprod_backward(Tensor gradient, Tensor self, int dim, Tensor result) -> Tensor");
  library.impl("cumprod_backward", c10::DispatchKey::CompositeExplicitAutograd, cumprod_backward);
}

}  // namespace

}  // namespace magneto::runtime
