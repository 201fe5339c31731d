// Normalisation and softmax. The layouts are those of the CPU's kernels; on other devices the norms decline.
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_log_softmax_backward_data_meta.h>
#include <ATen/ops/_log_softmax_meta.h>
#include <ATen/ops/_softmax_backward_data_meta.h>
#include <ATen/ops/_softmax_meta.h>

#include "fake/shape_rules.h"
#include "fake/structured.h"

namespace magneto::fake {
namespace {

bool covered(const at::Tensor& input) { return input.device().is_cpu() && class_of(input.scalar_type()) != kNone; }

/// The kernels have floats only; the other checks come first.
void check_floats(const at::Tensor& input) { check_dtype(input.scalar_type(), kFloats, kNone); }

template <typename... Parameters>
c10::ScalarType statistics_dtype(const at::Tensor& input, const Parameters&... parameters) {
  const bool mixed = at::native::is_mixed_type(input, parameters...);
  if (mixed) at::native::check_mixed_data_type(input, parameters...);
  return at::native::param_scalar_type(input, mixed);
}

template <class C>
bool native_layer_norm(C& call) {
  const at::Tensor& input = call.tensor(0);
  const auto shape = sizes_argument(call, 1);
  const at::Tensor weight = call.optional_tensor(2), bias = call.optional_tensor(3);
  if (kPlain<C> && !covered(input)) return false;
  const c10::ScalarType dtype = statistics_dtype(input, weight, bias);
  if constexpr (kPlain<C>) {
    at::native::_check_layer_norm_inputs(input, shape, weight, bias);
    check_floats(input);
  }
  const auto sizes = sizes_of<C>(input);
  if (shape.size() > sizes.size()) return false;
  auto statistics = sizes;
  for (size_t i = 0; i < shape.size(); ++i) {
    const size_t dim = sizes.size() - shape.size() + i;
    if (sizes[dim] != shape[i]) return false;
    statistics[dim] = 1;
  }
  return add(call, sizes, input.scalar_type(), input.device()) && add(call, statistics, dtype, input.device()) &&
         add(call, statistics, dtype, input.device());
}

/// (input, weight, bias, N, C, HxW, group, eps).
template <class C>
bool native_group_norm(C& call) {
  const at::Tensor& input = call.tensor(0);
  const at::Tensor weight = call.optional_tensor(1), bias = call.optional_tensor(2);
  const Size<C> batch = size_argument(call, 3), groups = size_argument(call, 6);
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  if (kPlain<C> && !covered(input)) return false;
  const c10::ScalarType dtype = statistics_dtype(input, weight, bias);
  if constexpr (kPlain<C>) {
    const int64_t channels = call.integer(4);
    TORCH_CHECK(groups > 0 && channels % groups == 0, "Expected number of channels in input to be divisible by ",
                "num_groups, but got input of shape ", input.sizes(), " and num_groups=", groups);
    for (const at::Tensor* parameter : {&weight, &bias}) {
      TORCH_CHECK(
          !parameter->defined() || (parameter->dim() == 1 && parameter->numel() == channels),
          "Expected weight and bias to be vectors of size equal to the number of channels in input, but got shape ",
          parameter->sizes(), " and input of shape ", input.sizes());
    }
    format = input.suggest_memory_format();
    if (!input.is_contiguous(format)) return false;
    check_floats(input);
  }
  return add_like(call, input, input.scalar_type(), input.device(), format) &&
         add(call, {batch, groups}, dtype, input.device()) && add(call, {batch, groups}, dtype, input.device());
}

struct BatchNorm {
  const at::Tensor& input;
  at::Tensor weight, bias, running_mean, running_var;
  bool training;
};

/// What the rule covers, of the kernel's dtypes and layouts.
bool is_usual(const BatchNorm& norm) {
  const at::Tensor& input = norm.input;
  if (!covered(input) || input.dim() < 2 || input.numel() == 0) return false;
  check_floats(input);
  if (!norm.training && (!norm.running_mean.defined() || !norm.running_var.defined())) return false;
  for (const at::Tensor* each : {&norm.weight, &norm.bias, &norm.running_mean, &norm.running_var}) {
    if (each->defined() && (!each->is_contiguous() || each->dim() != 1)) return false;
  }
  return true;
}

/// Adds output, saved mean, saved inverse deviation.
template <class C>
bool add_batch_norm(C& call, const BatchNorm& norm) {
  const at::Tensor& input = norm.input;
  if (input.dim() < 2 || (kPlain<C> && !is_usual(norm))) return false;
  const c10::ScalarType dtype = statistics_dtype(input, norm.weight, norm.bias, norm.running_mean, norm.running_var);
  const Size<C> channels = size_of<C>(input, 1);
  for (const at::Tensor* each : {&norm.weight, &norm.bias, &norm.running_mean, &norm.running_var}) {
    if (each->defined() && numel_of<C>(*each) != channels) return false;
  }
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  if (kPlain<C> && !input.is_contiguous()) format = input.suggest_memory_format();
  const Sizes<C> saved{norm.training ? channels : Size<C>(0)};
  return add_like(call, input, input.scalar_type(), input.device(), format) &&
         add(call, saved, dtype, input.device()) && add(call, saved, dtype, input.device());
}

/// (input, weight, bias, running_mean, running_var, ...); `training`: the argument that tells, or 0 for no, 1 for yes.
template <size_t training, class C>
bool batch_norm(C& call) {
  return add_batch_norm(call,
                        {call.tensor(0), call.optional_tensor(1), call.optional_tensor(2), call.optional_tensor(3),
                         call.optional_tensor(4), training > 1 ? call.boolean(training) : training == 1});
}

/// (input, weight, bias, training, ...): statistics of the batch.
template <class C>
bool batch_norm_no_stats(C& call) {
  return add_batch_norm(call,
                        {call.tensor(0), call.optional_tensor(1), call.optional_tensor(2), {}, {}, call.boolean(3)});
}

/// _batch_norm_with_update and _no_update: a fourth result, the reserve, is empty on CPU.
template <bool training, class C>
bool batch_norm_with_reserve(C& call) {
  return batch_norm<training ? 1 : 0>(call) && add(call, {0}, c10::ScalarType::Byte, call.tensor(0).device());
}

/// The new running statistics are results too. Where there are none, the operator raises.
bool functional_batch_norm(SymbolicCall& call) {
  return batch_norm<5>(call) && call.add(call.sizes(3)) && call.add(call.sizes(4));
}

bool functional_batch_norm_with_reserve(SymbolicCall& call) {
  return batch_norm_with_reserve<true>(call) && call.add(call.sizes(3)) && call.add(call.sizes(4));
}

/// The gradients that a mask asks for, as argument `mask`: of the input, laid out like `format` says, and of two
/// parameters. What is not asked for is undefined.
bool add_gradients(Call& call, size_t mask, at::MemoryFormat format, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor& input = call.tensor(1);
  const auto wanted = call.arg(mask).toBoolList();
  for (const at::Tensor* parameter : {&weight, &bias}) {
    const bool is_bias = parameter == &bias;
    if (wanted[is_bias ? 2 : 1] && (!parameter->defined() || parameter->dim() == 0)) return false;
  }
  const auto give = [&](const at::Tensor& of, at::MemoryFormat layout) {
    call.result(new_like(call, of, of.scalar_type(), of.device(), layout));
  };
  wanted[0] ? give(input, format) : call.result(at::Tensor());
  wanted[1] ? give(weight, at::MemoryFormat::Contiguous) : call.result(at::Tensor());
  wanted[2] ? give(bias, at::MemoryFormat::Contiguous) : call.result(at::Tensor());
  return true;
}

/// Arguments that the forward has accepted.
bool is_gradient_of(const Call& call, const at::Tensor& input) {
  return covered(input) && c10::isFloatingType(input.scalar_type()) && call.tensor(0).defined() &&
         call.tensor(0).sizes() == input.sizes() && call.tensor(0).scalar_type() == input.scalar_type() &&
         input.numel() > 0;
}

/// (grad, input, normalized_shape, mean, rstd, weight, bias, mask).
bool native_layer_norm_backward(Call& call) {
  if (!is_gradient_of(call, call.tensor(1))) return false;
  return add_gradients(call, 7, at::MemoryFormat::Contiguous, call.optional_tensor(5), call.optional_tensor(6));
}

/// (grad, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask). A bias is like the
/// weight.
bool native_batch_norm_backward(Call& call) {
  const at::Tensor& input = call.tensor(1);
  const at::Tensor weight = call.optional_tensor(2);
  const at::MemoryFormat format = input.suggest_memory_format();
  if (!is_gradient_of(call, input) || input.dim() < 2 || !input.is_contiguous(format)) return false;
  return add_gradients(call, 9, format, weight, weight);
}

/// (grad, input, mean, rstd, weight, N, C, HxW, group, mask). Likewise.
bool native_group_norm_backward(Call& call) {
  const at::Tensor& input = call.tensor(1);
  const at::Tensor weight = call.optional_tensor(4);
  const at::MemoryFormat format = input.suggest_memory_format();
  if (!is_gradient_of(call, input) || !input.is_contiguous(format)) return false;
  return add_gradients(call, 9, format, weight, weight);
}

/// softmax, then where(row is all -inf, 0, softmax).
template <class C>
bool safe_softmax(C& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t dim = c10::maybe_wrap_dim(call.integer(1), self.dim());
  const c10::ScalarType dtype = call.is_none(2) ? self.scalar_type() : call.arg(2).toScalarType();
  if (kPlain<C> && (class_of(dtype) == kNone || class_of(self.scalar_type()) == kNone)) return false;
  if (kPlain<C>) check_dtype(dtype, kFloats, kNone);
  return add(call, sizes_of<C>(self), dtype, self.device(), [&](const at::DimVector& sizes) {
    at::DimVector row_sizes = sizes;
    if (!row_sizes.empty()) row_sizes[dim] = 1;
    const at::DimVector row_strides = c10::contiguous_strides(row_sizes), strides = c10::contiguous_strides(sizes);
    return elementwise_layout({Geometry(row_sizes, row_strides), Geometry::scalar(), Geometry(sizes, strides)}).strides;
  });
}

/// _weight_norm_interface(v, g, dim): the weight and its norms.
bool weight_norm(Call& call) {
  const at::Tensor &v = call.tensor(0), &g = call.tensor(1);
  if (!covered(v) || v.scalar_type() != g.scalar_type() || !(class_of(v.scalar_type()) & kFloats)) return false;
  call.result(call.empty(v.sizes(), v.scalar_type(), v.device()));
  const c10::ScalarType dtype = class_of(g.scalar_type()) == kHalves ? c10::ScalarType::Float : g.scalar_type();
  call.result(call.empty(g.sizes(), g.strides(), dtype, g.device()));
  return true;
}

}  // namespace

std::span<const RuleRow> norm_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_norm(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_norm_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_norm(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
