// Normalisation and softmax. The layouts are those of the CPU's kernels; on other devices the norms decline.
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_log_softmax_backward_data_meta.h>
#include <ATen/ops/_log_softmax_meta.h>
#include <ATen/ops/_softmax_backward_data_meta.h>
#include <ATen/ops/_softmax_meta.h>

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

bool native_layer_norm(Call& call) {
  const at::Tensor& input = call.tensor(0);
  const std::vector<int64_t> shape = call.ints(1);
  const at::Tensor weight = call.optional_tensor(2), bias = call.optional_tensor(3);
  if (!covered(input)) return false;
  const c10::ScalarType dtype = statistics_dtype(input, weight, bias);
  at::native::_check_layer_norm_inputs(input, shape, weight, bias);
  check_floats(input);
  at::DimVector statistics(input.sizes());
  for (size_t i = statistics.size() - shape.size(); i < statistics.size(); ++i) statistics[i] = 1;
  call.result(call.empty(input.sizes(), input.scalar_type(), input.device()));
  call.result(call.empty(statistics, dtype, input.device()));
  call.result(call.empty(statistics, dtype, input.device()));
  return true;
}

bool native_group_norm(Call& call) {
  const at::Tensor& input = call.tensor(0);
  const at::Tensor weight = call.optional_tensor(1), bias = call.optional_tensor(2);
  const int64_t batch = call.integer(3), channels = call.integer(4), groups = call.integer(6);
  if (!covered(input)) return false;
  const c10::ScalarType dtype = statistics_dtype(input, weight, bias);
  TORCH_CHECK(groups > 0 && channels % groups == 0, "Expected number of channels in input to be divisible by ",
              "num_groups, but got input of shape ", input.sizes(), " and num_groups=", groups);
  for (const at::Tensor* parameter : {&weight, &bias}) {
    TORCH_CHECK(
        !parameter->defined() || (parameter->dim() == 1 && parameter->numel() == channels),
        "Expected weight and bias to be vectors of size equal to the number of channels in input, but got shape ",
        parameter->sizes(), " and input of shape ", input.sizes());
  }
  const at::MemoryFormat format = input.suggest_memory_format();
  if (!input.is_contiguous(format)) return false;
  check_floats(input);
  call.result(new_like(call, input, input.scalar_type(), input.device(), format));
  call.result(call.empty({batch, groups}, dtype, input.device()));
  call.result(call.empty({batch, groups}, dtype, input.device()));
  return true;
}

struct BatchNorm {
  const at::Tensor& input;
  at::Tensor weight, bias, running_mean, running_var;
  bool training;
};

/// Adds output, saved mean, saved inverse deviation.
bool add_batch_norm(Call& call, const BatchNorm& norm) {
  const at::Tensor& input = norm.input;
  if (!covered(input) || input.dim() < 2 || input.numel() == 0) return false;
  check_floats(input);
  const c10::ScalarType dtype = statistics_dtype(input, norm.weight, norm.bias, norm.running_mean, norm.running_var);
  if (!norm.training && (!norm.running_mean.defined() || !norm.running_var.defined())) return false;
  const int64_t channels = input.size(1);
  for (const at::Tensor* each : {&norm.weight, &norm.bias, &norm.running_mean, &norm.running_var}) {
    if (!each->defined()) continue;
    if (!each->is_contiguous() || each->dim() != 1 || each->numel() != channels) return false;
  }
  const at::MemoryFormat format = input.suggest_memory_format();
  call.result(new_like(call, input, input.scalar_type(), input.device(),
                       input.is_contiguous() ? at::MemoryFormat::Contiguous : format));
  const int64_t saved = norm.training ? channels : 0;
  call.result(call.empty({saved}, dtype, input.device()));
  call.result(call.empty({saved}, dtype, input.device()));
  return true;
}

/// (input, weight, bias, running_mean, running_var, ...); `training`: the argument that tells, or 0 for no, 1 for yes.
template <size_t training>
bool batch_norm(Call& call) {
  return add_batch_norm(call,
                        {call.tensor(0), call.optional_tensor(1), call.optional_tensor(2), call.optional_tensor(3),
                         call.optional_tensor(4), training > 1 ? call.boolean(training) : training == 1});
}

/// (input, weight, bias, training, ...): statistics of the batch.
bool batch_norm_no_stats(Call& call) {
  return add_batch_norm(call,
                        {call.tensor(0), call.optional_tensor(1), call.optional_tensor(2), {}, {}, call.boolean(3)});
}

/// _batch_norm_with_update and _no_update: a fourth result, the reserve, is empty on CPU.
template <bool training>
bool batch_norm_with_reserve(Call& call) {
  if (!batch_norm<training ? 1 : 0>(call)) return false;
  call.result(call.empty({0}, c10::ScalarType::Byte, call.tensor(0).device()));
  return true;
}

/// softmax, then where(row is all -inf, 0, softmax).
bool safe_softmax(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t dim = c10::maybe_wrap_dim(call.integer(1), self.dim());
  const c10::ScalarType dtype = call.is_none(2) ? self.scalar_type() : call.arg(2).toScalarType();
  if (class_of(dtype) == kNone || class_of(self.scalar_type()) == kNone) return false;
  check_dtype(dtype, kFloats, kNone);
  at::DimVector row_sizes(self.sizes());
  if (!row_sizes.empty()) row_sizes[dim] = 1;
  const at::DimVector row_strides = c10::contiguous_strides(row_sizes), strides = c10::contiguous_strides(self.sizes());
  const Layout layout =
      elementwise_layout({Geometry(row_sizes, row_strides), Geometry::scalar(), Geometry(self.sizes(), strides)});
  call.result(call.empty(layout.sizes, layout.strides, dtype, self.device()));
  return true;
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

constexpr RuleRow rows[] = {
#define ROW_shape_norm(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const RuleRow> norm_rules() { return rows; }

}  // namespace magneto::fake
