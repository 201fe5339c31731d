// Operators on images, sounds and volumes other than convolutions: sampling, patches, shuffled channels, pools. The
// layouts are those of the CPU's kernels; what these refuse, and other devices, the rules decline. Rules for numbers
// and sizes (shape_rules.h); behind them, those of sizes alone, of operators whose other rule is PyTorch's.
#include "fake/symbolic_rules.h"
#include "fake/windows.h"

namespace magneto::fake {
namespace {

using c10::SymInt;

bool has_elements(const at::Tensor& tensor, DtypeSet dtypes = kFloats) {
  return is_plain(tensor, dtypes) && tensor.numel() > 0;
}

template <class C>
bool add_contiguous(C& call, const Sizes<C>& sizes, const at::Tensor& like) {
  return add(call, sizes, like.scalar_type(), like.device());
}

/// What the CPU's kernels take. Of volumes there is no bicubic one.
bool samples(const at::Tensor& input, const at::Tensor& grid, int64_t spatial, int64_t interpolation) {
  return input.dim() == spatial + 2 && grid.dim() == spatial + 2 && grid.size(-1) == spatial &&
         input.size(0) == grid.size(0) && (spatial != 3 || interpolation != 2);
}

/// grid_sampler_2d, _3d: (input, grid, interpolation, padding, align_corners): as many places as the grid has.
template <int64_t spatial, class C>
bool grid_sampler(C& call) {
  const at::Tensor &input = call.tensor(0), &grid = call.tensor(1);
  if constexpr (kPlain<C>) {
    if (!has_elements(input, kSingles | kHalves) || !has_elements(grid) || input.scalar_type() != grid.scalar_type()) {
      return false;
    }
    if (!samples(input, grid, spatial, call.integer(2))) return false;
  }
  auto sizes = sizes_of<C>(input);
  const auto places = sizes_of<C>(grid);
  if (places.size() != sizes.size() || places[0] != sizes[0]) return false;
  for (size_t i = 2; i < sizes.size(); ++i) sizes[i] = places[i - 1];
  return add_contiguous(call, sizes, input);
}

/// (grad, input, grid, interpolation, padding, align_corners, output_mask): gradients of input, if wanted, and of grid.
template <int64_t spatial, class C>
bool grid_sampler_backward(C& call) {
  const at::Tensor &grad = call.tensor(0), &input = call.tensor(1), &grid = call.tensor(2);
  if constexpr (kPlain<C>) {
    if (!has_elements(grad, kSingles) || !has_elements(input, kSingles) || !has_elements(grid, kSingles)) return false;
    if (grad.dim() != spatial + 2 || !samples(input, grid, spatial, call.integer(3))) return false;
    if (!call.arg(6).toBoolList().get(0)) return false;
  }
  return add_like(call, input, input.scalar_type(), input.device(), at::MemoryFormat::Contiguous) &&
         add_like(call, grid, grid.scalar_type(), grid.device(), at::MemoryFormat::Contiguous);
}

/// Pairs of numbers that say how patches lie.
template <class C>
struct Patches {
  Sizes<C> kernel, dilation, padding, stride;
  Patches(const C& call, size_t first)
      : kernel(sizes_argument(call, first)),
        dilation(sizes_argument(call, first + 1)),
        padding(sizes_argument(call, first + 2)),
        stride(sizes_argument(call, first + 3)) {}

  bool are_usual() const {
    const auto all_from = [](const Sizes<C>& pair, int64_t least) {
      return pair.size() == 2 && pair[0] >= least && pair[1] >= least;
    };
    return all_from(kernel, 1) && all_from(dilation, 1) && all_from(padding, 0) && all_from(stride, 1);
  }
  Size<C> area() const { return kernel[0] * kernel[1]; }
  /// How many there are in an image of these sizes, its last two; less than one: none.
  Size<C> count(const Sizes<C>& sizes) const {
    Size<C> count = 1;
    for (size_t i = 0; i < 2; ++i) {
      const Size<C> along =
          windows<Size<C>>(sizes[sizes.size() - 2 + i], kernel[i], stride[i], padding[i], dilation[i]);
      if (along < 1) return 0;
      count = count * along;
    }
    return count;
  }
};

/// im2col(self, kernel_size, dilation, padding, stride): a column for each place of the window.
template <class C>
bool im2col(C& call) {
  const at::Tensor& self = call.tensor(0);
  const Patches<C> patches(call, 1);
  if (self.dim() != 3 && self.dim() != 4) return false;
  if (kPlain<C> && (!has_elements(self, kFloats | kBools | kComplexes) || !patches.are_usual())) return false;
  const auto own = sizes_of<C>(self);
  const Size<C> places = patches.count(own);
  if (places < 1) return false;
  Sizes<C> sizes(own.begin(), own.end() - 3);
  sizes.push_back(own[own.size() - 3] * patches.area());
  sizes.push_back(places);
  return add_contiguous(call, sizes, self);
}

/// col2im(self, output_size, kernel_size, dilation, padding, stride).
template <class C>
bool col2im(C& call) {
  const at::Tensor& self = call.tensor(0);
  const auto output = sizes_argument(call, 1);
  const Patches<C> patches(call, 2);
  if ((self.dim() != 2 && self.dim() != 3) || output.size() != 2) return false;
  const auto own = sizes_of<C>(self);
  if constexpr (kPlain<C>) {
    if (!has_elements(self, kFloats | kBools | kComplexes) || !patches.are_usual()) return false;
    if (output[0] < 1 || output[1] < 1 || own.back() != patches.count(output)) return false;
  }
  const Size<C>& rows = own[own.size() - 2];
  if (rows % patches.area() != 0) return false;
  Sizes<C> sizes(own.begin(), own.end() - 2);
  sizes.push_back(rows / patches.area());
  sizes.append(output.begin(), output.end());
  return add_contiguous(call, sizes, self);
}

/// pixel_shuffle, pixel_unshuffle: (self, factor): channels to pixels, and back.
template <bool up, class C>
bool pixel_shuffle(C& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t factor = call.integer(1);
  if (self.dim() < 3 || factor < 1 || (kPlain<C> && !has_elements(self, kAll))) return false;
  auto sizes = sizes_of<C>(self);
  Size<C>&channels = sizes[sizes.size() - 3], &height = sizes[sizes.size() - 2], &width = sizes.back();
  if (up) {
    if (channels % (factor * factor) != 0) return false;
    channels = channels / (factor * factor);
    height = height * factor;
    width = width * factor;
  } else {
    if (height % factor != 0 || width % factor != 0) return false;
    channels = channels * (factor * factor);
    height = height / factor;
    width = width / factor;
  }
  return add(call, sizes, self.scalar_type(), self.device(), [&](const at::DimVector& now) {
    const bool last = self.dim() == 4 && self.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
    return strides_in_format(now, last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  });
}

/// channel_shuffle(self, groups).
template <class C>
bool channel_shuffle(C& call) {
  const at::Tensor& self = call.tensor(0);
  if constexpr (kPlain<C>) {
    const int64_t groups = call.integer(1);
    if (!has_elements(self, kFloats) || self.dim() < 3 || groups < 2 || self.size(1) % groups != 0) return false;
    if (self.dim() > 4 || !self.is_contiguous()) return false;
  }
  return add_contiguous(call, sizes_of<C>(self), self);
}

/// Each parameter of a pool of volumes is one number, or three; the stride may be missing.
bool is_usual_pool3d(const Call& call) {
  const at::Tensor& self = call.tensor(0);
  for (size_t i = 1; i <= 4; ++i) {
    const size_t count = call.ints(i).size();
    if (count != 1 && count != 3 && !(i == 2 && count == 0)) return false;
  }
  if (!has_elements(self) || (self.dim() != 4 && self.dim() != 5) || !self.is_contiguous()) return false;
  const std::vector<int64_t> kernel = call.ints(1), stride = call.ints(2), padding = call.ints(3),
                             dilation = call.ints(4);
  for (size_t i = 0; i < 3; ++i) {
    const int64_t edge = at_or_last(padding, i);
    if (at_or_last(kernel, i) < 1 || (!stride.empty() && at_or_last(stride, i) < 1)) return false;
    if (at_or_last(dilation, i) < 1 || edge < 0 || edge > at_or_last(kernel, i) / 2) return false;
  }
  return true;
}

/// max_pool3d_with_indices(self, kernel_size, stride=[], padding=0, dilation=1, ceil_mode=False).
template <class C>
bool max_pool3d(C& call) {
  const at::Tensor& self = call.tensor(0);
  if constexpr (kPlain<C>) {
    if (!is_usual_pool3d(call)) return false;
  }
  const auto sizes = pooled<3, 4, 5>(call);
  return sizes && add_contiguous(call, *sizes, self) && add(call, *sizes, c10::ScalarType::Long, self.device());
}

/// _adaptive_avg_pool3d(self, output_size).
template <class C>
bool adaptive_avg_pool3d(C& call) {
  const at::Tensor& self = call.tensor(0);
  if constexpr (kPlain<C>) {
    const std::vector<int64_t> output = call.ints(1);
    if (!has_elements(self) || (self.dim() != 4 && self.dim() != 5) || output.size() != 3 || !self.is_contiguous()) {
      return false;
    }
    if (std::any_of(output.begin(), output.end(), [](int64_t size) { return size < 1; })) return false;
  }
  const auto sizes = resized_as_told(call);
  return sizes && add_contiguous(call, *sizes, self);
}

/// max_unpool2d(self, indices, output_size).
bool max_unpool2d(Call& call) {
  constexpr size_t spatial = 2;
  const at::Tensor &self = call.tensor(0), &indices = call.tensor(1);
  const std::vector<int64_t> output = call.ints(2);
  if (!has_elements(self) || indices.scalar_type() != c10::kLong || indices.sizes() != self.sizes()) return false;
  const auto dims = static_cast<size_t>(self.dim());
  if ((dims != spatial + 1 && dims != spatial + 2) || output.size() != spatial || !self.is_contiguous()) return false;
  at::DimVector sizes(self.sizes());
  for (size_t i = 0; i < spatial; ++i) {
    if (output[i] < 1) return false;
    sizes[dims - spatial + i] = output[i];
  }
  return add_contiguous(call, sizes, self);
}

// Of sizes alone.

template <size_t rank, int dilation_arg, size_t ceil_arg>
bool pool(SymbolicCall& call) {
  const auto sizes = pooled<rank, dilation_arg, ceil_arg>(call);
  return sizes && all_results(call, *sizes);
}

/// (input, output_size, ...): the last dimensions are as told.
bool resized(SymbolicCall& call) {
  const auto sizes = resized_as_told(call);
  return sizes && all_results(call, *sizes);
}

/// (self, pad): two numbers for each of the last dimensions, the last one first.
bool edge_pad(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const SymSizes pad = call.symints(1);
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    SymInt& size = sizes[sizes.size() - 1 - i];
    // Whether it grows says how the result is laid out.
    (void)(pad[2 * i] > 0);
    (void)(pad[2 * i + 1] > 0);
    size = size + pad[2 * i] + pad[2 * i + 1];
    if (size < 1) return false;
  }
  return all_results(call, sizes);
}

/// (theta, size, align_corners): a place in the image for each pixel of one of that size.
bool affine_grid(SymbolicCall& call) {
  const SymSizes theta = call.sizes(0), size = call.symints(1);
  const auto rank = static_cast<int64_t>(size.size()) - 2;
  if (rank < 2 || !same_sizes(theta, {size[0], rank, rank + 1})) return false;
  SymSizes sizes = size;
  sizes.erase(sizes.begin() + 1);
  sizes.push_back(rank);
  return all_results(call, sizes);
}

/// (self, k, dims): turned an odd number of times, two dimensions change places.
bool rot90(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const std::vector<int64_t> dims = call.integers(2);
  if (dims.size() != 2) return false;
  if (call.integer(1) % 2 != 0) std::swap(sizes[wrapped(dims[0], sizes)], sizes[wrapped(dims[1], sizes)]);
  return all_results(call, sizes);
}

}  // namespace

std::span<const RuleRow> images_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_images(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_images_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_images(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
