// Operators on images and volumes other than convolutions: sampling, patches, shuffled channels, pools of volumes. The
// layouts are those of the CPU's kernels; what these refuse, and other devices, the rules decline.
#include <ATen/native/Pool.h>

#include <array>

#include "fake/elementwise.h"

namespace magneto::fake {
namespace {

bool is_plain(const at::Tensor& tensor, DtypeSet dtypes = kFloats) {
  return tensor.is_cpu() && (class_of(tensor.scalar_type()) & dtypes) && tensor.numel() > 0;
}

at::Tensor contiguous(const Call& call, at::IntArrayRef sizes, const at::Tensor& like) {
  return call.empty(sizes, like.scalar_type(), like.device());
}

/// grid_sampler_2d, _3d: (input, grid, interpolation, padding, align_corners). Of volumes there is no bicubic one.
template <int64_t spatial>
bool grid_sampler(Call& call) {
  const at::Tensor &input = call.tensor(0), &grid = call.tensor(1);
  if (!is_plain(input, kSingles | kHalves) || !is_plain(grid) || input.scalar_type() != grid.scalar_type())
    return false;
  if (input.dim() != spatial + 2 || grid.dim() != spatial + 2 || input.size(0) != grid.size(0)) return false;
  if (grid.size(-1) != spatial || (spatial == 3 && call.integer(2) == 2)) return false;
  at::DimVector sizes{input.size(0), input.size(1)};
  for (int64_t i = 1; i <= spatial; ++i) sizes.push_back(grid.size(i));
  call.result(contiguous(call, sizes, input));
  return true;
}

/// (grad, input, grid, interpolation, padding, align_corners, output_mask): gradients of input, if wanted, and of grid.
template <int64_t spatial>
bool grid_sampler_backward(Call& call) {
  const at::Tensor &grad = call.tensor(0), &input = call.tensor(1), &grid = call.tensor(2);
  if (!is_plain(grad, kSingles) || !is_plain(input, kSingles) || !is_plain(grid, kSingles)) return false;
  if (input.dim() != spatial + 2 || grid.dim() != spatial + 2 || grad.dim() != spatial + 2) return false;
  if (input.size(0) != grid.size(0) || grid.size(-1) != spatial || (spatial == 3 && call.integer(3) == 2)) return false;
  if (!call.arg(6).toBoolList().get(0)) return false;
  call.result(call.empty(input.sizes(), like_layout(input, at::MemoryFormat::Contiguous).strides, input.scalar_type(),
                         input.device()));
  call.result(call.empty(grid.sizes(), like_layout(grid, at::MemoryFormat::Contiguous).strides, grid.scalar_type(),
                         grid.device()));
  return true;
}

/// Pairs of numbers that say how patches lie.
struct Patches {
  std::vector<int64_t> kernel, dilation, padding, stride;
  Patches(const Call& call, size_t first)
      : kernel(call.ints(first)),
        dilation(call.ints(first + 1)),
        padding(call.ints(first + 2)),
        stride(call.ints(first + 3)) {}

  bool are_usual() const {
    const auto all_from = [](const std::vector<int64_t>& pair, int64_t least) {
      return pair.size() == 2 && pair[0] >= least && pair[1] >= least;
    };
    return all_from(kernel, 1) && all_from(dilation, 1) && all_from(padding, 0) && all_from(stride, 1);
  }
  /// How many there are along a side of that extent.
  int64_t count(int64_t extent, int side) const {
    const int64_t covered = extent + 2 * padding[side] - dilation[side] * (kernel[side] - 1) - 1;
    return covered < 0 ? 0 : covered / stride[side] + 1;
  }
};

/// im2col(self, kernel_size, dilation, padding, stride).
bool im2col(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const Patches patches(call, 1);
  if (!is_plain(self, kFloats | kBools | kComplexes) || (self.dim() != 3 && self.dim() != 4) || !patches.are_usual()) {
    return false;
  }
  const int64_t rows = patches.count(self.size(-2), 0), columns = patches.count(self.size(-1), 1);
  if (rows < 1 || columns < 1) return false;
  at::DimVector sizes{self.size(-3) * patches.kernel[0] * patches.kernel[1], rows * columns};
  if (self.dim() == 4) sizes.insert(sizes.begin(), self.size(0));
  call.result(contiguous(call, sizes, self));
  return true;
}

/// col2im(self, output_size, kernel_size, dilation, padding, stride).
bool col2im(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> output = call.ints(1);
  const Patches patches(call, 2);
  if (!is_plain(self, kFloats | kBools | kComplexes) || (self.dim() != 2 && self.dim() != 3)) return false;
  if (!patches.are_usual() || output.size() != 2 || output[0] < 1 || output[1] < 1) return false;
  const int64_t area = patches.kernel[0] * patches.kernel[1];
  if (self.size(-2) % area != 0) return false;
  if (self.size(-1) != patches.count(output[0], 0) * patches.count(output[1], 1)) return false;
  at::DimVector sizes{self.size(-2) / area, output[0], output[1]};
  if (self.dim() == 3) sizes.insert(sizes.begin(), self.size(0));
  call.result(contiguous(call, sizes, self));
  return true;
}

/// pixel_shuffle, pixel_unshuffle: (self, factor).
template <bool up>
bool pixel_shuffle(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t factor = call.integer(1);
  if (!is_plain(self, kAll) || self.dim() < 3 || factor < 1) return false;
  at::DimVector sizes(self.sizes());
  int64_t &channels = sizes[sizes.size() - 3], &height = sizes[sizes.size() - 2], &width = sizes.back();
  if (up) {
    if (channels % (factor * factor) != 0) return false;
    channels /= factor * factor;
    height *= factor;
    width *= factor;
  } else {
    if (height % factor != 0 || width % factor != 0) return false;
    channels *= factor * factor;
    height /= factor;
    width /= factor;
  }
  const bool last = self.dim() == 4 && self.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  const at::DimVector strides = last ? strides_in_format(sizes, at::MemoryFormat::ChannelsLast)
                                     : strides_in_format(sizes, at::MemoryFormat::Contiguous);
  call.result(call.empty(sizes, strides, self.scalar_type(), self.device()));
  return true;
}

/// channel_shuffle(self, groups).
bool channel_shuffle(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t groups = call.integer(1);
  if (!is_plain(self, kFloats) || self.dim() < 3 || groups < 2 || self.size(1) % groups != 0) return false;
  if (self.dim() > 4 || !self.is_contiguous()) return false;
  call.result(contiguous(call, self.sizes(), self));
  return true;
}

/// A parameter of a pool of volumes: one number, or three; none given: as `otherwise` says.
std::array<int64_t, 3> three(const std::vector<int64_t>& given, std::array<int64_t, 3> otherwise) {
  if (given.empty()) return otherwise;
  if (given.size() == 1) return {given[0], given[0], given[0]};
  return {given[0], given[1], given[2]};
}

/// max_pool3d_with_indices(self, kernel_size, stride=[], padding=0, dilation=1, ceil_mode=False).
bool max_pool3d(Call& call) {
  const at::Tensor& self = call.tensor(0);
  for (size_t i = 1; i <= 4; ++i) {
    const size_t count = call.ints(i).size();
    if (count != 1 && count != 3 && !(i == 2 && count == 0)) return false;
  }
  if (!is_plain(self) || (self.dim() != 4 && self.dim() != 5) || !self.is_contiguous()) return false;
  const auto kernel = three(call.ints(1), {}), stride = three(call.ints(2), kernel), padding = three(call.ints(3), {}),
             dilation = three(call.ints(4), {});
  at::DimVector sizes(self.sizes());
  for (int i = 0; i < 3; ++i) {
    if (kernel[i] < 1 || stride[i] < 1 || dilation[i] < 1 || padding[i] < 0 || padding[i] > kernel[i] / 2) return false;
    int64_t& size = sizes[sizes.size() - 3 + i];
    size = at::native::pooling_output_shape(size, kernel[i], padding[i], stride[i], dilation[i], call.boolean(5));
    if (size < 1) return false;
  }
  call.result(contiguous(call, sizes, self));
  call.result(call.empty(sizes, c10::ScalarType::Long, self.device()));
  return true;
}

/// _adaptive_avg_pool3d(self, output_size).
bool adaptive_avg_pool3d(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> output = call.ints(1);
  if (!is_plain(self) || (self.dim() != 4 && self.dim() != 5) || output.size() != 3 || !self.is_contiguous()) {
    return false;
  }
  at::DimVector sizes(self.sizes());
  for (int i = 0; i < 3; ++i) {
    if (output[i] < 1) return false;
    sizes[sizes.size() - 3 + i] = output[i];
  }
  call.result(contiguous(call, sizes, self));
  return true;
}

/// max_unpool2d(self, indices, output_size).
bool max_unpool2d(Call& call) {
  constexpr size_t spatial = 2;
  const at::Tensor &self = call.tensor(0), &indices = call.tensor(1);
  const std::vector<int64_t> output = call.ints(2);
  if (!is_plain(self) || indices.scalar_type() != c10::kLong || indices.sizes() != self.sizes()) return false;
  const auto dims = static_cast<size_t>(self.dim());
  if ((dims != spatial + 1 && dims != spatial + 2) || output.size() != spatial || !self.is_contiguous()) return false;
  at::DimVector sizes(self.sizes());
  for (size_t i = 0; i < spatial; ++i) {
    if (output[i] < 1) return false;
    sizes[dims - spatial + i] = output[i];
  }
  call.result(contiguous(call, sizes, self));
  return true;
}

constexpr RuleRow rows[] = {
#define ROW_shape_images(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const RuleRow> images_rules() { return rows; }

}  // namespace magneto::fake
