// Reductions, scans and sorts.
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
#include <ATen/ops/sort_meta.h>
#include <ATen/ops/sum_meta.h>
#include <ATen/ops/topk_meta.h>
#include <torch/version.h>

#include "fake/structured.h"

namespace magneto::fake {
namespace {

namespace meta = at::meta;

/// The shape after reducing `dims` (none: all of them).
at::DimVector reduced_sizes(const at::Tensor& self, at::IntArrayRef dims, bool keepdim) {
  const int64_t rank = self.dim();
  auto mask = at::dim_list_to_bitset(dims, rank);
  if (dims.empty()) mask.set();
  at::DimVector sizes;
  for (int64_t i = 0; i < rank; ++i) {
    if (!mask[i]) {
      sizes.push_back(self.size(i));
    } else if (keepdim) {
      sizes.push_back(1);
    }
  }
  return sizes;
}

/// The dtype that sums and products of integers have.
c10::ScalarType accumulated(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, true) ? c10::ScalarType::Long : dtype;
}

bool add_number(Call& call, c10::ScalarType dtype) {
  call.result(call.empty({}, dtype, call.tensor(0).device()));
  return true;
}

/// sum, prod: (self, dtype).
bool sum_all(Call& call) {
  const c10::ScalarType dtype = call.tensor(0).scalar_type();
  if (class_of(dtype) == kNone) return false;
  return add_number(call, call.is_none(1) ? accumulated(dtype) : call.arg(1).toScalarType());
}

bool mean_all(Call& call) {
  const c10::ScalarType dtype = call.is_none(1) ? call.tensor(0).scalar_type() : call.arg(1).toScalarType();
  if (class_of(dtype) == kNone) return false;
  TORCH_CHECK(
      class_of(dtype) & (kFloats | kComplexes),
      "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: ",
      dtype);
  return add_number(call, dtype);
}

/// max, min of all elements.
template <bool largest>
bool extreme_of_all(Call& call) {
  const at::Tensor& self = call.tensor(0);
  TORCH_CHECK(self.numel() != 0, largest ? "max" : "min",
              "(): Expected reduction dim to be specified for input.numel() == 0. ",
              "Specify the reduction dim with the 'dim' argument.");
  return add_number(call, self.scalar_type());
}

bool median_of_all(Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (self.numel() == 0) return false;
  return add_number(call, self.scalar_type());
}

/// var, std: (self, dim, correction, keepdim). With `mean`, a second result.
template <bool mean>
bool variance(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const c10::ScalarType dtype = self.scalar_type();
  if (class_of(dtype) == kNone) return false;
  TORCH_CHECK(class_of(dtype) & (kFloats | kComplexes), "std and var only support floating point and complex dtypes");
  const std::vector<int64_t> dims = call.is_none(1) ? std::vector<int64_t>() : call.ints(1);
  const at::DimVector sizes = reduced_sizes(self, dims, call.boolean(3));
  if (mean && c10::isComplexType(dtype)) return false;
  call.result(call.empty(sizes, c10::toRealValueType(dtype), self.device()));
  if (mean) call.result(call.empty(sizes, dtype, self.device()));
  return true;
}

bool logsumexp(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> dims = call.ints(1);
  if (self.numel() == 0 || dims.empty()) return false;
  const at::DimVector sizes = reduced_sizes(self, dims, call.boolean(2));
  call.result(call.empty(sizes, promote_to_float(self.scalar_type()), self.device()));
  return true;
}

/// median, mode: (self, dim, keepdim) gives values and indices.
template <size_t first = 1>
bool values_and_indices(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t dim = at::maybe_wrap_dim(call.integer(first), self.dim());
  if (self.numel() == 0) return false;
  const at::DimVector sizes = reduced_sizes(self, {dim}, call.boolean(first + 1));
  call.result(call.empty(sizes, self.scalar_type(), self.device()));
  call.result(call.empty(sizes, c10::ScalarType::Long, self.device()));
  return true;
}

/// kthvalue(self, k, dim, keepdim).
bool kthvalue(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t dim = at::maybe_wrap_dim(call.integer(2), self.dim());
  const int64_t k = call.integer(1), extent = self.dim() == 0 ? 1 : self.size(dim);
  return k >= 1 && k <= extent && values_and_indices<2>(call);
}

/// nansum(self, dim=None, keepdim=False, dtype=None).
bool nansum(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const c10::ScalarType dtype = call.is_none(3) ? accumulated(self.scalar_type()) : call.arg(3).toScalarType();
  if (!self.is_cpu() || class_of(dtype) == kNone || c10::isComplexType(dtype)) return false;
  const std::vector<int64_t> dims = call.is_none(1) ? std::vector<int64_t>() : call.ints(1);
  call.result(call.empty(reduced_sizes(self, dims, call.boolean(2)), dtype, self.device()));
  return true;
}

/// count_nonzero.dim_IntList(self, dim).
bool count_nonzero(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> dims = call.ints(1);
  if (!self.is_cpu()) return false;
  call.result(call.empty(reduced_sizes(self, dims, false), c10::ScalarType::Long, self.device()));
  return true;
}

bool trace(Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (!self.is_cpu() || self.dim() != 2) return false;
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isReducedFloatingType(self.scalar_type()), "\"trace\" not implemented for '",
                              self.scalar_type(), "'");
#endif
  return add_number(call, accumulated(self.scalar_type()));
}

/// cummax, cummin: (self, dim).
bool running_extreme(Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (self.numel() != 0) at::maybe_wrap_dim(call.integer(1), self.dim());
  call.result(call.empty(self.sizes(), self.scalar_type(), self.device()));
  call.result(call.empty(self.sizes(), c10::ScalarType::Long, self.device()));
  return true;
}

/// logcumsumexp(self, dim), and the operator in it.
bool logcumsumexp(Call& call) {
  const at::Tensor& self = call.tensor(0);
  at::maybe_wrap_dim(call.integer(1), self.dim());
  if (!self.is_cpu()) return false;
  call.result(call.empty(self.sizes(), self.scalar_type(), self.device()));
  return true;
}

bool cumsum_(Call& call) {
  at::maybe_wrap_dim(call.integer(1), call.tensor(0).dim());
  check_no_internal_overlap(call.tensor(0));
  return structured_inplace<meta::structured_cumsum>(call);
}

/// sort(self, dim, descending), which is sort.stable without the argument.
bool sort(Call& call) {
  const at::Tensor& self = call.tensor(0);
  at::maybe_wrap_dim(call.integer(1), self.dim());
  call.result(new_like(call, self, self.scalar_type(), self.device()));
  call.result(new_like(call, self, c10::ScalarType::Long, self.device()));
  return true;
}

/// mse_loss, smooth_l1_loss: (self, target, reduction, ...).
bool loss(Call& call) {
  Operands operands;
  operands.add(call.tensor(0));
  operands.add(call.tensor(1));
  const c10::ScalarType dtype = operands.promoted();
  if (!(class_of(dtype) & kFloats)) return false;
  const Layout layout = operands.layout(dtype);
  const bool reduced = call.integer(2) != at::Reduction::None;
  call.result(reduced ? call.empty({}, dtype, operands.device())
                      : call.empty(layout.sizes, layout.strides, dtype, operands.device()));
  return true;
}

constexpr RuleRow rows[] = {
#define ROW_shape_reduction(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const RuleRow> reduction_rules() { return rows; }

}  // namespace magneto::fake
