// Reductions, scans and sorts. Those that are not PyTorch's structured ones serve numbers and sizes (shape_rules.h).
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/all_meta.h>
#include <ATen/ops/amax_meta.h>
#include <ATen/ops/amin_meta.h>
#include <ATen/ops/aminmax_meta.h>
#include <ATen/ops/any_meta.h>
#include <ATen/ops/argmax_meta.h>
#include <ATen/ops/argmin_meta.h>
#include <ATen/ops/cumprod_meta.h>
#include <ATen/ops/cumsum_meta.h>
#include <ATen/ops/linalg_vector_norm_meta.h>
#include <ATen/ops/max_meta.h>
#include <ATen/ops/mean_meta.h>
#include <ATen/ops/min_meta.h>
#include <ATen/ops/nll_loss_backward_meta.h>
#include <ATen/ops/nll_loss_forward_meta.h>
#include <ATen/ops/norm_meta.h>
#include <ATen/ops/prod_meta.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sort_meta.h>
#include <ATen/ops/sum_meta.h>
#include <ATen/ops/topk_meta.h>
#include <torch/version.h>

#include "fake/shape_rules.h"
#include "fake/structured.h"

namespace magneto::fake {
namespace {

namespace meta = at::meta;

/// The sizes of argument 0 after reducing `dims` (none: all of them).
template <class C>
Sizes<C> reduced_sizes(const C& call, at::IntArrayRef dims, bool keepdim) {
  Sizes<C> sizes = sizes_of<C>(call.tensor(0));
  const auto rank = static_cast<int64_t>(sizes.size());
  auto mask = at::dim_list_to_bitset(dims, rank);
  if (dims.empty()) mask.set();
  for (int64_t dim = rank; dim-- > 0;) {
    if (!mask[dim]) continue;
    if (keepdim) {
      sizes[dim] = 1;
    } else {
      sizes.erase(sizes.begin() + dim);
    }
  }
  return sizes;
}

template <class C>
std::vector<int64_t> optional_dims(const C& call, size_t i) {
  return call.is_none(i) ? std::vector<int64_t>() : dims_argument(call, i);
}

/// The dtype that sums and products of integers have.
c10::ScalarType accumulated(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, true) ? c10::ScalarType::Long : dtype;
}

template <class C>
bool add_number(C& call, c10::ScalarType dtype) {
  return add(call, {}, dtype, call.tensor(0).device());
}

/// sum, prod: (self, dtype).
template <class C>
bool sum_all(C& call) {
  const c10::ScalarType dtype = call.tensor(0).scalar_type();
  if (kPlain<C> && class_of(dtype) == kNone) return false;
  return add_number(call, call.is_none(1) ? accumulated(dtype) : call.arg(1).toScalarType());
}

template <class C>
bool mean_all(C& call) {
  const c10::ScalarType dtype = call.is_none(1) ? call.tensor(0).scalar_type() : call.arg(1).toScalarType();
  if (kPlain<C> && class_of(dtype) == kNone) return false;
  TORCH_CHECK(
      !kPlain<C> || class_of(dtype) & (kFloats | kComplexes),
      "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: ",
      dtype);
  return add_number(call, dtype);
}

/// max, min of all elements.
template <bool largest, class C>
bool extreme_of_all(C& call) {
  const at::Tensor& self = call.tensor(0);
  TORCH_CHECK(!kPlain<C> || self.numel() != 0, largest ? "max" : "min",
              "(): Expected reduction dim to be specified for input.numel() == 0. ",
              "Specify the reduction dim with the 'dim' argument.");
  return add_number(call, self.scalar_type());
}

template <class C>
bool median_of_all(C& call) {
  const at::Tensor& self = call.tensor(0);
  if (kPlain<C> && self.numel() == 0) return false;
  return add_number(call, self.scalar_type());
}

/// var, std: (self, dim, correction, keepdim). With `mean`, a second result.
template <bool mean, class C>
bool variance(C& call) {
  const at::Tensor& self = call.tensor(0);
  const c10::ScalarType dtype = self.scalar_type();
  if (kPlain<C> && (class_of(dtype) == kNone || (mean && c10::isComplexType(dtype)))) return false;
  TORCH_CHECK(!kPlain<C> || class_of(dtype) & (kFloats | kComplexes),
              "std and var only support floating point and complex dtypes");
  const auto sizes = reduced_sizes(call, optional_dims(call, 1), call.boolean(3));
  return add(call, sizes, c10::toRealValueType(dtype), self.device()) &&
         (!mean || add(call, sizes, dtype, self.device()));
}

template <class C>
bool logsumexp(C& call) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> dims = dims_argument(call, 1);
  if (kPlain<C> && (self.numel() == 0 || dims.empty())) return false;
  return add(call, reduced_sizes(call, dims, call.boolean(2)), promote_to_float(self.scalar_type()), self.device());
}

/// median, mode: (self, dim, keepdim) gives values and indices.
template <size_t first, class C>
bool values_and_indices(C& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t dim = at::maybe_wrap_dim(call.integer(first), self.dim());
  if (kPlain<C> && self.numel() == 0) return false;
  const auto sizes = reduced_sizes(call, {dim}, call.boolean(first + 1));
  return add(call, sizes, self.scalar_type(), self.device()) && add(call, sizes, c10::ScalarType::Long, self.device());
}

/// kthvalue(self, k, dim, keepdim).
template <class C>
bool kthvalue(C& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t dim = at::maybe_wrap_dim(call.integer(2), self.dim());
  const Size<C> k = size_argument(call, 1), extent = self.dim() == 0 ? Size<C>(1) : size_of<C>(self, dim);
  return k >= 1 && k <= extent && values_and_indices<2>(call);
}

/// nansum(self, dim=None, keepdim=False, dtype=None).
template <class C>
bool nansum(C& call) {
  const at::Tensor& self = call.tensor(0);
  const c10::ScalarType dtype = call.is_none(3) ? accumulated(self.scalar_type()) : call.arg(3).toScalarType();
  if (kPlain<C> && (!self.is_cpu() || class_of(dtype) == kNone || c10::isComplexType(dtype))) return false;
  return add(call, reduced_sizes(call, optional_dims(call, 1), call.boolean(2)), dtype, self.device());
}

/// count_nonzero.dim_IntList(self, dim).
template <class C>
bool count_nonzero(C& call) {
  const at::Tensor& self = call.tensor(0);
  if (kPlain<C> && !self.is_cpu()) return false;
  return add(call, reduced_sizes(call, dims_argument(call, 1), false), c10::ScalarType::Long, self.device());
}

template <class C>
bool trace(C& call) {
  const at::Tensor& self = call.tensor(0);
  if (kPlain<C> && (!self.is_cpu() || self.dim() != 2)) return false;
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isReducedFloatingType(self.scalar_type()), "\"trace\" not implemented for '",
                              self.scalar_type(), "'");
#endif
  return add_number(call, accumulated(self.scalar_type()));
}

/// cummax, cummin: (self, dim).
template <class C>
bool running_extreme(C& call) {
  const at::Tensor& self = call.tensor(0);
  if (kPlain<C> && self.numel() != 0) at::maybe_wrap_dim(call.integer(1), self.dim());
  const auto sizes = sizes_of<C>(self);
  return add(call, sizes, self.scalar_type(), self.device()) && add(call, sizes, c10::ScalarType::Long, self.device());
}

/// logcumsumexp(self, dim), and the operator in it.
template <class C>
bool logcumsumexp(C& call) {
  const at::Tensor& self = call.tensor(0);
  at::maybe_wrap_dim(call.integer(1), self.dim());
  if (kPlain<C> && !self.is_cpu()) return false;
  return add(call, sizes_of<C>(self), self.scalar_type(), self.device());
}

bool cumsum_(Call& call) {
  at::maybe_wrap_dim(call.integer(1), call.tensor(0).dim());
  check_no_internal_overlap(call.tensor(0));
  return structured_inplace<meta::structured_cumsum>(call);
}

/// sort(self, dim, descending), which is sort.stable without the argument.
template <class C>
bool sort(C& call) {
  const at::Tensor& self = call.tensor(0);
  at::maybe_wrap_dim(call.integer(1), self.dim());
  return add_like(call, self, self.scalar_type(), self.device()) &&
         add_like(call, self, c10::ScalarType::Long, self.device());
}

/// mse_loss, smooth_l1_loss: (self, target, reduction, ...).
template <class C>
bool loss(C& call) {
  const c10::ScalarType dtype = at::result_type(call.tensor(0), call.tensor(1));
  if (kPlain<C> && !(class_of(dtype) & kFloats)) return false;
  return add_elementwise(call, {0, 1}, dtype, call.integer(2) != at::Reduction::None);
}

/// magneto::cumprod_backward(Tensor gradient, Tensor self, int dim, Tensor result).
template <class C>
bool cumprod_backward(C& call) {
  const at::Tensor& self = call.tensor(1);
  const c10::ScalarType dtype = c10::promoteTypes(self.scalar_type(), call.tensor(3).scalar_type());
  return add(call, sizes_of<C>(self), dtype, self.device());
}

}  // namespace

std::span<const RuleRow> reduction_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_reduction(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_reduction_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_reduction(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
