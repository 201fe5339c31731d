// Convolutions, pooling, resampling. The layouts are those of the CPU's kernels; convolutions on other devices decline.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/adaptive_max_pool2d_meta.h>
#include <ATen/ops/avg_pool2d_backward_meta.h>
#include <ATen/ops/avg_pool2d_meta.h>
#include <ATen/ops/max_pool2d_with_indices_backward_meta.h>
#include <ATen/ops/max_pool2d_with_indices_meta.h>
#include <ATen/ops/upsample_bicubic2d_meta.h>
#include <ATen/ops/upsample_bilinear2d_meta.h>
#include <ATen/ops/upsample_linear1d_meta.h>
#include <ATen/ops/upsample_nearest1d_meta.h>
#include <ATen/ops/upsample_nearest2d_meta.h>

#include <algorithm>

#include "fake/onednn.h"
#include "fake/structured.h"
#include "fake/windows.h"

namespace magneto::fake {
namespace {

namespace meta = at::meta;

/// A parameter given once for all spatial dimensions.
template <class List>
List expanded(const char* name, List parameter, size_t rank) {
  if (parameter.size() == 1) parameter.resize(rank, parameter[0]);
  TORCH_CHECK(parameter.size() == rank, "expected ", name, " to be a single integer value or a list of ", rank,
              " values to match the convolution dimensions, but got ", name, "=",
              at::ArrayRef<typename List::value_type>(parameter));
  return parameter;
}

/// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups).
template <class C>
struct Convolution {
  const at::Tensor& input;
  const at::Tensor& weight;
  at::Tensor bias;
  Sizes<C> input_sizes, weight_sizes;
  size_t spatial;
  Sizes<C> stride, padding, dilation, output_padding;
  bool transposed;
  Size<C> groups;

  explicit Convolution(const C& call)
      : input(call.tensor(0)),
        weight(call.tensor(1)),
        bias(call.optional_tensor(2)),
        input_sizes(sizes_of<C>(input)),
        weight_sizes(sizes_of<C>(weight)),
        spatial(std::max<int64_t>(weight.dim() - 2, 0)),
        stride(expanded("stride", sizes_argument(call, 3), spatial)),
        padding(expanded("padding", sizes_argument(call, 4), spatial)),
        dilation(expanded("dilation", sizes_argument(call, 5), spatial)),
        output_padding(expanded("output_padding", sizes_argument(call, 7), spatial)),
        transposed(call.boolean(6)),
        groups(size_argument(call, 8)) {}

  Size<C> output_channels() const { return transposed ? weight_sizes[1] * groups : weight_sizes[0]; }
  void check() const;
  Sizes<C> output_sizes() const;
};

template <class C>
void Convolution<C>::check() const {
  using List = at::ArrayRef<Size<C>>;
  TORCH_CHECK(spatial > 0, "weight should have at least three dimensions");
  TORCH_CHECK(groups > 0, "expected groups to be greater than 0, but got groups=", groups);
  TORCH_CHECK(input.dim() == weight.dim(), "Expected ", weight.dim(), "-dimensional input for ", weight.dim(),
              "-dimensional weight ", List(weight_sizes), ", but got ", input.dim(), "-dimensional input of size ",
              List(input_sizes), " instead");
  for (size_t i = 0; i < spatial; ++i) {
    TORCH_CHECK(padding[i] >= 0, "negative padding is not supported");
    TORCH_CHECK(stride[i] > 0, "non-positive stride is not supported");
    TORCH_CHECK(dilation[i] > 0, "dilation should be greater than zero");
  }
  TORCH_CHECK(weight_sizes[0] >= groups && weight_sizes[0] % groups == 0, "Given groups=", groups,
              ", expected weight to be at least ", groups,
              " at dimension 0 and divisible by it, but got weight of size ", List(weight_sizes), " instead");
  const Size<C> channels = transposed ? weight_sizes[0] : weight_sizes[1] * groups;
  TORCH_CHECK(input_sizes[1] == channels, "Given groups=", groups, ", weight of size ", List(weight_sizes),
              ", expected input", List(input_sizes), " to have ", channels, " channels, but got ", input_sizes[1],
              " channels instead");
  TORCH_CHECK(!bias.defined() || (bias.dim() == 1 && size_of<C>(bias, 0) == output_channels()), "Given weight of size ",
              List(weight_sizes), ", expected bias to be 1-dimensional with ", output_channels(),
              " elements, but got bias of size ", bias.sym_sizes(), " instead");
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "Input type (", input.toString(), ") and weight type (",
              weight.toString(), ") should be the same");
  TORCH_CHECK(!bias.defined() || bias.scalar_type() == input.scalar_type(), "Input type (", input.toString(),
              ") and bias type (", bias.toString(), ") should be the same");
  if (transposed) return;
  for (size_t i = 0; i < spatial; ++i) {
    const Size<C> extent = input_sizes[i + 2] + padding[i] * 2;
    const Size<C> kernel = dilation[i] * (weight_sizes[i + 2] - 1) + 1;
    TORCH_CHECK(extent >= kernel, "Calculated padded input size per channel: (", extent, "). Kernel size: (", kernel,
                "). Kernel size can't be greater than actual input size");
  }
}

template <class C>
Sizes<C> Convolution<C>::output_sizes() const {
  Sizes<C> sizes{input_sizes[0], output_channels()};
  for (size_t i = 0; i < spatial; ++i) {
    const Size<C>&size = input_sizes[i + 2], &kernel = weight_sizes[i + 2];
    sizes.push_back(transposed
                        ? (size - 1) * stride[i] - padding[i] * 2 + dilation[i] * (kernel - 1) + output_padding[i] + 1
                        : windows<Size<C>>(size, kernel, stride[i], padding[i], dilation[i]));
  }
  return sizes;
}

/// The format of the result; nothing where that depends on more.
std::optional<at::MemoryFormat> format_of(const Convolution<Call>& convolution) {
  const at::Tensor &input = convolution.input, &weight = convolution.weight;
  const at::MemoryFormat contiguous = at::MemoryFormat::Contiguous;
  if (convolution.spatial == 1) {
    // The input is made contiguous; a weight that looks channels-last as an image would still steer the kernel.
    return weight.is_contiguous() ? std::optional(contiguous) : std::nullopt;
  }
  if (input.suggest_memory_format() == contiguous && weight.suggest_memory_format() == contiguous) return contiguous;
  // oneDNN's kernels keep channels-last, and so does the plain two-dimensional one; the others differ.
  const bool plain = convolution.groups == 1 && convolution.dilation == at::DimVector{1, 1};
  const bool onednn = input.scalar_type() == c10::ScalarType::Float && at::globalContext().userEnabledMkldnn();
  if (convolution.spatial != 2 || convolution.transposed || !(onednn || plain)) return std::nullopt;
  return at::MemoryFormat::ChannelsLast;
}

template <class C>
bool convolution(C& call) {
  const Convolution<C> convolution(call);
  const at::Tensor &input = convolution.input, &weight = convolution.weight;
  if constexpr (kPlain<C>) {
    if (!input.device().is_cpu() || !weight.device().is_cpu()) return false;
    if (!(class_of(input.scalar_type()) & kFloats) || input.numel() == 0 || weight.numel() == 0) return false;
  }
  convolution.check();
  const auto sizes = convolution.output_sizes();
  for (size_t i = 2; i < sizes.size(); ++i) {
    if (sizes[i] < 1) return false;
  }
  std::optional<at::MemoryFormat> format;
  if constexpr (kPlain<C>) {
    format = format_of(convolution);
    if (!format) return false;
  }
  return add(call, sizes, input.scalar_type(), input.device(),
             [&](const at::DimVector& now) { return strides_in_format(now, *format); });
}

template <class C>
bool adaptive_avg_pool2d(C& call) {
  const at::Tensor& self = call.tensor(0);
  const auto output = sizes_argument(call, 1);
  TORCH_CHECK(output.size() == 2, "adaptive_avg_pool2d: output_size must be 2");
  TORCH_CHECK(self.dim() == 3 || self.dim() == 4, "adaptive_avg_pool2d(): Expected 3D or 4D tensor, but got ",
              self.sym_sizes());
  if (kPlain<C> && self.numel() == 0) return false;
  const auto sizes = resized_as_told(call);
  return sizes && add(call, *sizes, self.scalar_type(), self.device(),
                      [&](const at::DimVector& now) { return strides_in_format(now, self.suggest_memory_format()); });
}

/// The format of the gradients of large images and of weights. Of other dtypes and dimensions they are taken for
/// row-major, as PyTorch's meta kernel takes all.
at::MemoryFormat format_of_gradients(const at::Tensor& input, const at::Tensor& weight) {
  const bool onednn = input.scalar_type() == c10::ScalarType::Float && at::globalContext().userEnabledMkldnn();
  const at::MemoryFormat last = at::MemoryFormat::ChannelsLast;
  const bool is_last = input.suggest_memory_format() == last || weight.suggest_memory_format() == last;
  return input.dim() == 4 && onednn && is_last ? last : at::MemoryFormat::Contiguous;
}

/// Of a weight with one tap, strides of dimensions of size one tell who has made its gradient; PyTorch's own kernel
/// does with one thread. (call: its stride and dilation)
bool has_library_strides(const Call& call, const at::Tensor& input, const at::Tensor& weight) {
  if (weight.size(2) > 1 || weight.size(3) > 1 || weight.suggest_memory_format() == at::MemoryFormat::ChannelsLast)
    return true;
  const auto moves = [&](size_t i) { return std::ranges::any_of(call.ints(i), [](int64_t by) { return by != 1; }); };
  return is_for_onednn(input.numel(), input.size(0), /*wide=*/false) &&
         (moves(4) || moves(6) || input.size(0) >= 16 || at::get_num_threads() > 1);
}

/// (grad, input, weight, bias_sizes, ..., mask). Of small ones the kernel itself says how its results lie, on zeros.
bool convolution_backward(Call& call) {
  constexpr int64_t small = int64_t{1} << 18;
  const at::Tensor &grad = call.tensor(0), &input = call.tensor(1), &weight = call.tensor(2);
  const bool is_large = grad.numel() > small || input.numel() > small || weight.numel() > small;
  if (!is_large || !grad.is_cpu() || !input.is_cpu() || !weight.is_cpu()) return false;
  const auto wanted = call.arg(10).toBoolList();
  if (wanted[2] && call.is_none(3)) return false;
  const at::MemoryFormat plain = at::MemoryFormat::Contiguous, format = format_of_gradients(input, weight);
  const std::vector<int64_t> bias = wanted[2] ? call.ints(3) : std::vector<int64_t>();
  const auto result = [&](at::IntArrayRef sizes, at::MemoryFormat as) {
    const at::DimVector now(sizes);
    return call.empty(now, strides_in_format(now, as), grad.scalar_type(), grad.device());
  };
  call.result(wanted[0] ? result(input.sizes(), format) : at::Tensor());
  const bool as_library = format != plain && has_library_strides(call, input, weight);
  call.result(wanted[1] ? result(weight.sizes(), as_library ? format : plain) : at::Tensor());
  call.result(wanted[2] ? result(bias, plain) : at::Tensor());
  return true;
}

}  // namespace

std::span<const RuleRow> convolution_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_convolution(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_convolution_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_convolution(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
