// Gradients: the operators that autograd's formulas call. In eager's order of arithmetic where that decides what
// special values become.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lower/lowering.h"

namespace magneto::lower {
namespace {

T zeros_of(T x) { return broadcast(x.number(0), x.sizes()); }

/// The number of elements that one element of a reduction over `dims` is made of.
Size elements(const T& x, const std::vector<int64_t>& dims) {
  Size number = 1;
  for (const int64_t dim : dims) number *= x.node().sizes[dim];
  return number;
}

T sum(T x, const std::vector<int64_t>& dims) { return dims.empty() ? x : reduce(Op::ReduceSum, x, dims); }

// -- pointwise: (grad, what the forward read or gave, ...)

bool threshold_backward(Call& call) {
  const T grad = call.in(0), x = call.in(1);
  return call.set_result(select(x <= call.in(2), zeros_of(x), grad));
}

bool gelu_backward(Call& call) {
  const T grad = call.in(0), x = call.in(1);
  if (call.text(2) == "tanh") {
    const double beta = M_SQRT2 * M_2_SQRTPI * 0.5, kappa = 0.044715;
    const T square = x * x, inner = tanh(beta * (x + kappa * (square * x)));
    const T left = 0.5 * x, right = 1.0 + inner;
    const T slope = (1.0 - inner * inner) * (beta * (1.0 + 3 * kappa * square));
    return call.set_result(grad * (0.5 * right + left * slope));
  }
  const T scaled = x * M_SQRT1_2, gauss = exp(-(scaled * scaled));
  const T normal = 0.5 * (1.0 + erf_from(scaled, gauss));
  return call.set_result(grad * (normal + x * (gauss * (M_2_SQRTPI * M_SQRT1_2 * 0.5))));
}

bool silu_backward(Call& call) {
  const T grad = call.in(0), x = call.in(1), sigma = 1.0 / (1.0 + exp(-x));
  return call.set_result(grad * sigma * (1.0 + x * (1.0 - sigma)));
}

bool sigmoid_backward(Call& call) {
  const T grad = call.in(0), y = call.in(1);
  return call.set_result(grad * (1.0 - y) * y);
}

bool tanh_backward(Call& call) {
  const T grad = call.in(0), y = call.in(1);
  return call.set_result(grad * (1.0 - y * y));
}

bool leaky_relu_backward(Call& call) {
  const T grad = call.in(0), x = call.in(1);
  return call.set_result(select(x > 0.0, grad, grad * call.number(2)));
}

/// (grad, alpha, scale, input_scale, is_result, self_or_result).
bool elu_backward(Call& call) {
  const T grad = call.in(0), x = call.in(5);
  const double alpha = call.number(1), scale = call.number(2), input_scale = call.number(3);
  const T below = call.flag(4) ? grad * input_scale * (x + alpha * scale)
                               : grad * input_scale * (alpha * scale) * exp(x * input_scale);
  return call.set_result(select(x > 0.0, grad * scale, below));  // NaN is below, as in eager's vectors
}

bool hardtanh_backward(Call& call) {
  const T grad = call.in(0), x = call.in(1);
  return call.set_result(select((x > call.in(2)) & (x < call.in(3)), grad, zeros_of(x)));  // NaN as in eager's vectors
}

bool hardsigmoid_backward(Call& call) {
  const T grad = call.in(0), x = call.in(1);
  return call.set_result(select((x > -3.0) & (x < 3.0), grad * (1.0 / 6.0), zeros_of(x)));
}

bool softplus_backward(Call& call) {
  const T grad = call.in(0), x = call.in(1);
  const T z = exp(x * call.number(2));
  return call.set_result(select(x * call.number(2) > call.number(3), grad, grad * z / (z + 1.0)));
}

bool mse_loss_backward(Call& call) {
  const T grad = call.in(0), x = call.in(1), target = call.in(2);
  const int64_t reduction = call.integer(3);
  const T distance = x - target;
  if (reduction != 1) return call.set_result(2.0 * distance * grad);
  return call.set_result(distance * (2.0 / x.number(count(x.sizes()))) * grad);
}

/// (grad, mask, scale).
bool dropout_backward(Call& call) {
  const T grad = call.in(0);
  return call.set_result(grad * call.raw(1).to(grad.dtype()) * call.number(2));
}

// -- softmax: (grad, output, dim, input_dtype)

template <bool of_log>
bool softmax_backward(Call& call) {
  const T grad = call.in(0), y = call.in(1);
  if (y.rank() == 0) return false;
  const std::vector<int64_t> dims{Call::wrap(call.integer(2), y.rank())};
  if (of_log) return call.set_result(grad - exp(y) * sum(grad, dims));
  const T weighted = grad * y;
  return call.set_result(weighted - y * sum(weighted, dims));
}

/// (grad, self, target, weight, reduction, ignore_index, total_weight).
bool nll_loss_backward(Call& call) {
  const int64_t reduction = call.integer(4);
  if (call.given(3) || call.meta(1).sizes.size() != 2 || call.meta(2).sizes.size() != 1) return false;
  const Sizes to = call.result_sizes();
  T grad = call.in(0);
  if (reduction == 1) grad = grad / call.in(6);
  grad = reduction == 0 ? reshape(grad, {to[0], 1}) : reshape(grad, {1, 1});
  const T target = reshape(call.raw(2).to(Dtype::I64), {to[0], 1});
  const T column = call.index(Expr::variable(1), to);
  const T hit = (column == target) & (target != static_cast<double>(call.integer(5)));
  return call.set_result(select(hit, broadcast(-grad, to), broadcast(grad.number(0), to)));
}

// -- norms

/// The gradients of `normal * weight + bias` where `normal` is `(x - mean) * scale` over `dims`.
struct Normalised {
  T grad;    // of the result
  T normal;  // what the forward multiplied with the weight
  T scale;   // what it multiplied the distances from the mean with
};

/// Of what was normalised. `grad` has the weight in it.
T through_norm(T grad, const Normalised& of, const std::vector<int64_t>& dims) {
  const T number = grad.number(elements(of.normal, dims));
  return (grad - of.normal * (sum(grad * of.normal, dims) / number) - sum(grad, dims) / number) * of.scale;
}

/// Where a norm over the last dimensions has its weight: the leading ones are summed.
std::vector<int64_t> leading(int64_t rank, size_t inner) {
  std::vector<int64_t> dims(static_cast<size_t>(rank) - inner);
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

std::vector<int64_t> trailing(int64_t rank, size_t inner) {
  std::vector<int64_t> dims(inner);
  std::iota(dims.begin(), dims.end(), rank - static_cast<int64_t>(inner));
  return dims;
}

Dtype dtype_of(Call& call, int i) { return loops::value_dtype(*loop_dtype(call.meta(i).dtype)); }

/// (grad, input, normalized_shape, mean, rstd, weight, bias, output_mask).
bool layer_norm_backward(Call& call) {
  const Dtype dtype = dtype_of(call, 1);
  const T grad = call.in(0, dtype), x = call.in(1, dtype);
  const Sizes sizes = x.sizes(), inner(sizes.end() - static_cast<int64_t>(call.size_list(2).size()), sizes.end());
  if (x.dag->may_be_empty(x.sizes())) return false;
  const T scale = call.in(4, dtype);
  const Normalised of{grad, (x - call.in(3, dtype)) * scale, scale};
  const std::vector<int64_t> outer = leading(x.rank(), inner.size());
  if (call.wanted(0)) {
    const T weighted = call.given(5) ? grad * reshape(call.in(5, dtype), inner) : grad;
    call.set_result(through_norm(weighted, of, trailing(x.rank(), inner.size())), 0);
  }
  if (call.wanted(1)) call.set_reshaped_result(sum(grad * of.normal, outer), 1);
  if (call.wanted(2)) call.set_reshaped_result(sum(grad, outer), 2);
  return true;
}

/// (grad, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask). Eager adds floats
/// in double.
bool batch_norm_backward(Call& call) {
  const Dtype dtype = dtype_of(call, 1);
  const T grad = call.in(0, dtype), x = call.in(1, dtype);
  const bool train = call.flag(7);
  if (x.rank() < 2 || x.dag->may_be_empty(x.sizes()) || (!train && !(call.given(3) && call.given(4)))) return false;
  Sizes per_channel(x.rank(), 1);
  per_channel[1] = x.sizes()[1];
  const auto channel = [&](int i) { return reshape(call.in(i, dtype), per_channel); };
  const T mean = train ? channel(5) : channel(3);
  const T scale = train ? channel(6) : 1.0 / sqrt(channel(4) + call.number(8));
  const T factor = call.given(2) ? scale * channel(2) : scale;
  std::vector<int64_t> dims(x.rank());
  std::iota(dims.begin(), dims.end(), 0);
  dims.erase(dims.begin() + 1);
  const Dtype wide = dtype == Dtype::F32 ? Dtype::F64 : dtype;
  const T distance = x - mean;
  const T total = sum(grad.to(wide), dims), product = sum((grad * distance).to(wide), dims);
  if (call.wanted(0)) {
    if (train) {
      const T number = total.number(elements(x, dims));
      const T level = (total / number).to(dtype);
      const T slope = (product / number).to(dtype) * scale * scale;
      call.set_result((grad - level - distance * slope) * factor, 0);
    } else {
      call.set_result(grad * factor, 0);
    }
  }
  if (call.wanted(1)) call.set_reshaped_result(product.to(dtype) * scale, 1);
  if (call.wanted(2)) call.set_reshaped_result(total, 2);
  return true;
}

/// (grad, input, mean, rstd, weight, N, C, HxW, group, output_mask).
bool group_norm_backward(Call& call) {
  const Dtype dtype = dtype_of(call, 1);
  const T flat = call.in(1, dtype);
  const Size batch = call.size(5), area = call.size(7);
  const int64_t channels = call.integer(6), groups = call.integer(8);
  if (flat.dag->may_be_empty(flat.sizes())) return false;
  const Sizes grouped{batch, groups, channels / groups, area}, rows{batch, groups, 1, 1};
  const T grad = reshape(call.in(0, dtype), grouped), x = reshape(flat, grouped);
  const T scale = reshape(call.in(3, dtype), rows);
  const Normalised of{grad, (x - reshape(call.in(2, dtype), rows)) * scale, scale};
  if (call.wanted(0)) {
    T weighted = grad;
    if (call.given(4)) weighted = grad * reshape(call.in(4, dtype), {1, groups, channels / groups, 1});
    call.set_reshaped_result(through_norm(weighted, of, {2, 3}), 0);
  }
  if (call.wanted(1)) call.set_reshaped_result(sum(grad * of.normal, {0, 3}), 1);
  if (call.wanted(2)) call.set_reshaped_result(sum(grad, {0, 3}), 2);
  return true;
}

}  // namespace

std::span<const RuleRow> backward_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_lowering_backward(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::lower
