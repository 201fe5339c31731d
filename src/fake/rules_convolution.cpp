// Convolutions, pooling, resampling. The layouts are those of the CPU's kernels; convolutions on other devices decline.
#include <ATen/Context.h>
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

#include "fake/structured.h"

namespace magneto::fake {
namespace {

namespace meta = at::meta;

/// A parameter given once for all spatial dimensions.
std::vector<int64_t> expanded(const char* name, std::vector<int64_t> parameter, size_t rank) {
  if (parameter.size() == 1) parameter.resize(rank, parameter[0]);
  TORCH_CHECK(parameter.size() == rank, "expected ", name, " to be a single integer value or a list of ", rank,
              " values to match the convolution dimensions, but got ", name, "=", at::IntArrayRef(parameter));
  return parameter;
}

/// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups).
struct Convolution {
  const at::Tensor& input;
  const at::Tensor& weight;
  at::Tensor bias;
  size_t spatial;
  std::vector<int64_t> stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;

  explicit Convolution(const Call& call)
      : input(call.tensor(0)),
        weight(call.tensor(1)),
        bias(call.optional_tensor(2)),
        spatial(std::max<int64_t>(weight.dim() - 2, 0)),
        stride(expanded("stride", call.ints(3), spatial)),
        padding(expanded("padding", call.ints(4), spatial)),
        dilation(expanded("dilation", call.ints(5), spatial)),
        output_padding(expanded("output_padding", call.ints(7), spatial)),
        transposed(call.boolean(6)),
        groups(call.integer(8)) {}

  int64_t output_channels() const { return transposed ? weight.size(1) * groups : weight.size(0); }
  void check() const;
  at::DimVector output_sizes() const;
};

void Convolution::check() const {
  TORCH_CHECK(spatial > 0, "weight should have at least three dimensions");
  TORCH_CHECK(groups > 0, "expected groups to be greater than 0, but got groups=", groups);
  TORCH_CHECK(input.dim() == weight.dim(), "Expected ", weight.dim(), "-dimensional input for ", weight.dim(),
              "-dimensional weight ", weight.sizes(), ", but got ", input.dim(), "-dimensional input of size ",
              input.sizes(), " instead");
  for (size_t i = 0; i < spatial; ++i) {
    TORCH_CHECK(padding[i] >= 0, "negative padding is not supported");
    TORCH_CHECK(stride[i] > 0, "non-positive stride is not supported");
    TORCH_CHECK(dilation[i] > 0, "dilation should be greater than zero");
  }
  TORCH_CHECK(weight.size(0) >= groups && weight.size(0) % groups == 0, "Given groups=", groups,
              ", expected weight to be at least ", groups,
              " at dimension 0 and divisible by it, but got weight of size ", weight.sizes(), " instead");
  const int64_t channels = transposed ? weight.size(0) : weight.size(1) * groups;
  TORCH_CHECK(input.size(1) == channels, "Given groups=", groups, ", weight of size ", weight.sizes(),
              ", expected input", input.sizes(), " to have ", channels, " channels, but got ", input.size(1),
              " channels instead");
  TORCH_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == output_channels()), "Given weight of size ",
              weight.sizes(), ", expected bias to be 1-dimensional with ", output_channels(),
              " elements, but got bias of size ", bias.sizes(), " instead");
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "Input type (", input.toString(), ") and weight type (",
              weight.toString(), ") should be the same");
  TORCH_CHECK(!bias.defined() || bias.scalar_type() == input.scalar_type(), "Input type (", input.toString(),
              ") and bias type (", bias.toString(), ") should be the same");
  if (transposed) return;
  for (size_t i = 0; i < spatial; ++i) {
    const int64_t extent = input.size(i + 2) + 2 * padding[i];
    const int64_t kernel = dilation[i] * (weight.size(i + 2) - 1) + 1;
    TORCH_CHECK(extent >= kernel, "Calculated padded input size per channel: (", extent, "). Kernel size: (", kernel,
                "). Kernel size can't be greater than actual input size");
  }
}

at::DimVector Convolution::output_sizes() const {
  at::DimVector sizes{input.size(0), output_channels()};
  for (size_t i = 0; i < spatial; ++i) {
    const int64_t kernel = dilation[i] * (weight.size(i + 2) - 1) + 1;
    sizes.push_back(transposed ? (input.size(i + 2) - 1) * stride[i] - 2 * padding[i] + kernel + output_padding[i]
                               : (input.size(i + 2) + 2 * padding[i] - kernel) / stride[i] + 1);
  }
  return sizes;
}

bool convolution(Call& call) {
  const Convolution convolution(call);
  const at::Tensor &input = convolution.input, &weight = convolution.weight;
  if (!input.device().is_cpu() || !weight.device().is_cpu()) return false;
  if (!(class_of(input.scalar_type()) & kFloats) || input.numel() == 0 || weight.numel() == 0) return false;
  convolution.check();
  const at::DimVector sizes = convolution.output_sizes();
  for (size_t i = 2; i < sizes.size(); ++i) {
    if (sizes[i] <= 0) return false;
  }
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  if (convolution.spatial == 1) {
    // The input is made contiguous; a weight that looks channels-last as an image would still steer the kernel.
    if (!weight.is_contiguous()) return false;
  } else if (input.suggest_memory_format() != format || weight.suggest_memory_format() != format) {
    // oneDNN's kernels keep channels-last, and so does the plain two-dimensional one; the others differ.
    const bool plain = convolution.groups == 1 && convolution.dilation == std::vector<int64_t>{1, 1};
    const bool onednn = input.scalar_type() == c10::ScalarType::Float && at::globalContext().userEnabledMkldnn();
    if (convolution.spatial != 2 || convolution.transposed || !(onednn || plain)) return false;
    format = at::MemoryFormat::ChannelsLast;
  }
  call.result(call.empty(sizes, strides_in_format(sizes, format), input.scalar_type(), input.device()));
  return true;
}

bool adaptive_avg_pool2d(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> output = call.ints(1);
  TORCH_CHECK(output.size() == 2, "adaptive_avg_pool2d: output_size must be 2");
  TORCH_CHECK(self.dim() == 3 || self.dim() == 4, "adaptive_avg_pool2d(): Expected 3D or 4D tensor, but got ",
              self.sizes());
  if (self.numel() == 0) return false;
  at::DimVector sizes(self.sizes());
  sizes[self.dim() - 2] = output[0];
  sizes[self.dim() - 1] = output[1];
  call.result(
      call.empty(sizes, strides_in_format(sizes, self.suggest_memory_format()), self.scalar_type(), self.device()));
  return true;
}

constexpr RuleRow rows[] = {
#define ROW_shape_convolution(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const RuleRow> convolution_rules() { return rows; }

}  // namespace magneto::fake
