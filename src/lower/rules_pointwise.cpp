// Elementwise operators.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "lower/lowering.h"

namespace magneto::lower {
namespace {

template <Op op>
bool unary(Call& call) {
  const T x = call.in(0);
  if (loops::facts(op).dtypes.find(is_float(x.dtype())        ? 'F'
                                   : x.dtype() == Dtype::Bool ? 'B'
                                                              : 'I') == std::string_view::npos)
    return false;
  return call.set_result(x.apply(op));
}

/// Floor and its like leave integers alone.
template <Op op>
bool rounding(Call& call) {
  const T x = call.in(0);
  return call.set_result(is_float(x.dtype()) ? x.apply(op) : x);
}

template <Op op>
bool binary(Call& call) {
  const T a = call.in(0), b = call.in(1);
  if (a.dtype() == Dtype::Bool) return false;
  return call.set_result(a.apply(op, b));
}

template <Op op>
bool compare(Call& call) {
  const auto promoted = call.promoted(0, 1);
  const auto dtype = promoted ? loop_dtype(*promoted) : std::nullopt;
  if (!dtype) return false;
  const Dtype value = loops::value_dtype(*dtype);
  T a = call.in(0, value), b = call.in(1, value);
  // A number beyond the dtype's precision would be rounded on one side only.
  if (value != *dtype) {
    const Op round = *dtype == Dtype::BF16 ? Op::RoundBF16 : Op::RoundF16;
    a = a.apply(round);
    b = b.apply(round);
  }
  return call.set_result(a.apply(op, b));
}

template <Op op>
bool logical(Call& call) {
  return call.set_result(call.raw(0).to(Dtype::Bool).apply(op, call.raw(1).to(Dtype::Bool)));
}

template <Op op>
bool bitwise(Call& call) {
  const T a = call.in(0), b = call.in(1);
  if (is_float(a.dtype())) return false;
  return call.set_result(a.apply(op, b));
}

/// Operand `i` in the dtype of the result, into which eager converts it first, and then as `in` gives it.
T converted(Call& call, int i) {
  const T x = call.in(i);
  const c10::ScalarType dtype = call.result_meta().dtype;
  if ((dtype != c10::kBFloat16 && dtype != c10::kHalf) || (call.is_tensor(i) && call.meta(i).dtype == dtype)) return x;
  return x.apply(dtype == c10::kBFloat16 ? Op::RoundBF16 : Op::RoundF16);
}

/// Operand 1 of a product or quotient: eager takes a number, or the only element of a tensor, as precise as it is.
T factor(Call& call) {
  if (!call.is_tensor(1)) return call.in(1);
  const Size elements = count(call.sizes(1));
  return elements.is_static() && elements.number() == 1 ? call.in(1) : converted(call, 1);
}

/// add and sub: (self, other, alpha).
template <Op op>
bool add_like(Call& call) {
  const Dtype dtype = call.compute();
  if (dtype == Dtype::Bool) {
    // True + True is True.
    if (op != Op::Add || call.number(2) != 1) return false;
    return call.set_result(call.in(0) | call.in(1));
  }
  return call.set_result(converted(call, 0).apply(op, converted(call, 1) * call.in(2)));
}

bool multiply(Call& call) {
  if (call.compute() == Dtype::Bool) return call.set_result(call.in(0) & call.in(1));
  return call.set_result(converted(call, 0) * factor(call));
}

/// Integer division by zero raises in eager: only for numbers that are not zero.
bool divides_safely(Call& call) {
  return is_float(call.compute()) || (!call.is_tensor(1) && call.number(1) != 0 && call.compute() != Dtype::Bool);
}

bool divide(Call& call) { return call.set_result(converted(call, 0) / factor(call)); }

bool divide_mode(Call& call) {
  if (!call.given(2)) return divide(call);
  if (!divides_safely(call)) return false;
  const T a = call.in(0), b = call.in(1);
  if (call.text(2) == "floor") return call.set_result(a.apply(Op::FloorDiv, b));
  return call.set_result(is_float(a.dtype()) ? (a / b).apply(Op::Trunc) : a / b);
}

template <Op op>
bool modulo(Call& call) {
  if (!divides_safely(call)) return false;
  return call.set_result(call.in(0).apply(op, call.in(1)));
}

bool pow_number(Call& call) {
  const T x = call.in(0);
  const double exponent = call.number(1);
  if (!is_float(x.dtype())) {
    if (x.dtype() == Dtype::Bool || exponent < 0 || !call.is_integral(1)) return false;
    return call.set_result(power(x, call.in(1)));
  }
  if (exponent == 0) return call.set_result(broadcast(x.number(1), x.sizes()));
  if (exponent == 1) return call.set_result(x);
  if (exponent == 2) return call.set_result(x * x);
  if (exponent == 3) return call.set_result(x * x * x);
  // Of -inf a root is no number and a power is infinity; eager takes the power for half.
  const bool half = call.meta(0).dtype == c10::kHalf;
  if (exponent == 0.5 && !half) return call.set_result(sqrt(x));
  if (exponent == -0.5 && !half) return call.set_result(1.0 / sqrt(x));
  if (exponent == -1) return call.set_result(1.0 / x);
  if (exponent == -2) return call.set_result(1.0 / (x * x));
  return call.set_result(power(x, exponent));
}

bool pow_tensor(Call& call) {
  if (!is_float(call.compute())) return false;
  return call.set_result(power(call.in(0), call.in(1)));
}

/// Before PyTorch 2.13 a NaN that is the only number to bound values in `clamp` leaves them alone; later it makes them
/// NaN. Tensors, pairs of numbers, `clamp_min` and `clamp_max` hand NaN on in all versions.
bool lone_nan_is_ignored() {
  static const bool ignored = [] {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const at::Tensor bounded = at::clamp(at::zeros({1}, at::kFloat), std::nullopt, nan);
    return !std::isnan(*bounded.const_data_ptr<float>());
  }();
  return ignored;
}

template <bool by_numbers>
bool clamp(Call& call) {
  T x = call.in(0);
  if (x.dtype() == Dtype::Bool) return false;
  const bool lone = by_numbers && !(call.given(1) && call.given(2)) && lone_nan_is_ignored();
  if (call.given(1)) x = lone ? select(x < call.in(1), call.in(1), x) : maximum(x, call.in(1));
  if (call.given(2)) x = lone ? select(x > call.in(2), call.in(2), x) : minimum(x, call.in(2));
  return call.set_result(x);
}

/// Whether oneDNN computes in the dtype on this CPU, as PyTorch's own question says.
bool one_dnn_computes(c10::ScalarType dtype) {
  const auto ask = [](const char* question) {
    torch::jit::Stack stack;
    c10::Dispatcher::singleton().findSchemaOrThrow(question, "").callBoxed(&stack);
    return stack.back().toBool();
  };
  static const bool halves = ask("mkldnn::_is_mkldnn_fp16_supported");
  static const bool bfloats = ask("mkldnn::_is_mkldnn_bf16_supported");
  return dtype == c10::kFloat || (dtype == c10::kBFloat16 && bfloats) || (dtype == c10::kHalf && halves);
}

/// Where oneDNN's gelu departs from the formula: its kernels for AVX-512 double x on the way, so that gelu(inf) is NaN;
/// those for AVX2 lose the sign of zero. Which of them runs is a matter of the CPU and of the environment
/// (ONEDNN_MAX_CPU_ISA), so it is asked, once.
struct OneDnnGelu {
  bool doubles, loses_sign_of_zero;
};

const OneDnnGelu& one_dnn_gelu() {
  static const OneDnnGelu found = [] {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto of = [](double value) { return at::gelu(at::full({16}, value, at::kFloat)).data_ptr<float>()[0]; };
    return OneDnnGelu{std::isnan(of(std::numeric_limits<double>::infinity())), !std::signbit(of(-0.0))};
  }();
  return found;
}

/// Eager gives dense tensors of more than one element to oneDNN.
bool is_one_dnn_gelu(Call& call) {
  const Sizes sizes = call.sizes(0), strides = graph::strides_of(call.meta(0));
  Size elements = 1;
  for (size_t dim = sizes.size(); dim-- > 0;) {
    if (sizes[dim] != 1 && strides[dim] != elements) {
      if (!strides[dim].is_static() || !elements.is_static()) throw shapes::UnknownSize("gelu's layout");
      return false;
    }
    elements *= sizes[dim];
  }
  if (!elements.is_static() && call.lowering().dag.may_be_empty({elements - 1})) {
    throw shapes::UnknownSize("whether gelu has one element");
  }
  return elements.hint() > 1 && one_dnn_computes(call.meta(0).dtype) && at::globalContext().userEnabledMkldnn();
}

bool gelu(Call& call) {
  const T x = call.in(0);
  if (call.text(1) == "tanh") {
    const T inner = 0.7978845608028654 * (x + 0.044715 * (x * x * x));
    return call.set_result(0.5 * x * (1.0 + tanh(inner)));
  }
  const T twice_normal = 1.0 + erf(x * 0.70710678118654752440);
  if (!is_one_dnn_gelu(call)) return call.set_result(x * 0.5 * twice_normal);
  const OneDnnGelu& one_dnn = one_dnn_gelu();
  T result = one_dnn.doubles ? x * twice_normal * 0.5 : x * 0.5 * twice_normal;
  if (one_dnn.loses_sign_of_zero) result = result + 0.0;
  if (!one_dnn.doubles) return call.set_result(result);
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  return call.set_result(select(x == infinity, broadcast(x.number(nan), x.sizes()), result));
}

bool softplus(Call& call) {
  const T x = call.in(0), scaled = x * call.number(1);
  return call.set_result(select(scaled > call.number(2), x, log1p(exp(scaled)) / call.number(1)));
}

bool elu(Call& call) {
  const T x = call.in(0);
  const double alpha = call.number(1), scale = call.number(2), input_scale = call.number(3);
  return call.set_result(select(x < 0.0, expm1(x * input_scale) * (alpha * scale), x * scale));
}

bool hardsigmoid_of(Call& call, bool times_x) {
  const T x = call.in(0);
  const T clipped = minimum(maximum(x + 3.0, 0.0), 6.0);
  return call.set_result((times_x ? x * clipped : clipped) / 6.0);
}

/// Rounded once where it is added, as eager's compiler has it: a product beyond the largest number may come back.
bool addcmul(Call& call) {
  const T x = call.in(0), scaled = call.in(3) * call.in(1), factor = call.in(2);
  if (!is_float(x.dtype())) return call.set_result(x + scaled * factor);
  return call.set_result({x.dag, x.dag->math(Op::Fma, {scaled.id, factor.id, x.id})});
}

bool where(Call& call) { return call.set_result(select(call.raw(0).to(Dtype::Bool), call.in(1), call.in(2))); }

bool masked_fill(Call& call) {
  const T x = call.in(0);
  const T value = call.element(2, call.result_meta().dtype);
  if (value.rank() != 0) return false;
  return call.set_result(select(call.raw(1).to(Dtype::Bool), value, x));
}

/// The elements in another dtype or layout: no arithmetic.
bool copy(Call& call) { return call.set_result(call.raw(0)); }

/// (self, src): src's elements in self's sizes and dtype.
bool copy_from(Call& call) { return call.set_result(broadcast(call.raw(1), call.result_sizes())); }

template <int number>
bool filled_with(Call& call) {
  return call.set_result(broadcast(call.number(call.compute(), number), call.result_sizes()));
}

/// The number or the tensor without dimensions at `argument`, everywhere.
template <int argument>
bool filled_from(Call& call) {
  return call.set_result(broadcast(call.element(argument, call.result_meta().dtype), call.result_sizes()));
}

bool reversed_sub(Call& call) { return call.set_result(converted(call, 1) - converted(call, 0) * call.in(2)); }

bool addcdiv(Call& call) { return call.set_result(call.in(0) + call.in(3) * call.in(1) / call.in(2)); }

bool lerp(Call& call) {
  const T a = call.in(0), b = call.in(1);
  const double weight = call.number(2);
  return call.set_result(std::abs(weight) < 0.5 ? a + weight * (b - a) : b - (b - a) * (1 - weight));
}

bool is_nan(Call& call) {
  const T x = call.raw(0);
  return call.set_result(x != x);
}

bool is_inf(Call& call) {
  const T x = call.raw(0);
  if (!is_float(x.dtype())) return call.set_result(broadcast(call.number(Dtype::Bool, 0), x.sizes()));
  return call.set_result(abs(x) == static_cast<double>(INFINITY));
}

bool logical_not(Call& call) { return call.set_result(!call.raw(0).to(Dtype::Bool)); }

bool relu(Call& call) { return call.set_result(maximum(call.in(0), 0.0)); }

bool silu(Call& call) {
  const T x = call.in(0);
  return call.set_result(x / (1.0 + exp(-x)));
}

bool mish(Call& call) {
  const T x = call.in(0);
  return call.set_result(x * tanh(log1p(exp(x))));
}

bool leaky_relu(Call& call) {
  const T x = call.in(0);
  return call.set_result(select(x > 0.0, x, x * call.number(1)));
}

bool threshold(Call& call) {
  const T x = call.in(0);
  return call.set_result(select(x <= call.in(1), broadcast(call.in(2), x.sizes()), x));
}

bool hardsigmoid(Call& call) { return hardsigmoid_of(call, false); }

bool hardswish(Call& call) { return hardsigmoid_of(call, true); }

bool clamp_min(Call& call) { return call.compute() != Dtype::Bool && call.set_result(maximum(call.in(0), call.in(1))); }

bool clamp_max(Call& call) { return call.compute() != Dtype::Bool && call.set_result(minimum(call.in(0), call.in(1))); }

bool heaviside(Call& call) {
  const T x = call.in(0), at_zero = call.in(1);
  if (x.dtype() == Dtype::Bool) return false;
  return call.set_result(select(x == 0.0, at_zero, (x > 0.0).to(x.dtype())));
}

}  // namespace

std::span<const RuleRow> pointwise_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_lowering_pointwise(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::lower
