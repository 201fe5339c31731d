// Symbolic rules of operators on images, sounds and volumes: convolution, pooling, padding, pixels.
#include "fake/scales.h"
#include "fake/symbolic_rules.h"

namespace magneto::fake {
namespace {

using c10::SymInt;

SymInt at_or_last(const SymSizes& values, size_t i) { return values[std::min(i, values.size() - 1)]; }

/// How often a window of `kernel` with these steps fits.
SymInt windows(const SymInt& size, const SymInt& kernel, const SymInt& stride, const SymInt& padding,
               const SymInt& dilation) {
  return (size + padding * 2 - dilation * (kernel - 1) - 1) / stride + 1;
}

/// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups).
bool convolution(SymbolicCall& call) {
  const SymSizes input = call.sizes(0), weight = call.sizes(1);
  const SymSizes stride = call.symints(3), padding = call.symints(4), dilation = call.symints(5),
                 more = call.symints(7);
  const bool transposed = call.arg(6).toBool();
  const SymInt groups = call.symint(8);
  if (input.size() != weight.size() || input.size() < 3) return false;
  SymSizes sizes = {input[0], transposed ? weight[1] * groups : weight[0]};
  if (input[1] != (transposed ? weight[0] : weight[1] * groups)) return false;
  for (size_t i = 2; i < input.size(); ++i) {
    const SymInt s = at_or_last(stride, i - 2), p = at_or_last(padding, i - 2), d = at_or_last(dilation, i - 2);
    SymInt size = transposed ? (input[i] - 1) * s - p * 2 + d * (weight[i] - 1) + at_or_last(more, i - 2) + 1
                             : windows(input[i], weight[i], s, p, d);
    if (size < 1) return false;
    sizes.push_back(std::move(size));
  }
  return all_results(call, sizes);
}

/// (input, kernel_size, stride, padding, [dilation,] ceil_mode...): the last `rank` dimensions.
template <size_t rank, int dilation_arg, size_t ceil_arg>
bool pool(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const SymSizes kernel = call.symints(1), padding = call.symints(3);
  SymSizes stride = call.symints(2);
  if (stride.empty()) stride = kernel;
  const bool up = call.arg(ceil_arg).toBool();
  if (sizes.size() < rank + 1) return false;
  const SymSizes dilation =
      dilation_arg < 0 ? SymSizes{1} : call.symints(static_cast<size_t>(std::max(dilation_arg, 0)));
  for (size_t i = 0; i < rank; ++i) {
    SymInt& size = sizes[sizes.size() - rank + i];
    const SymInt step = at_or_last(stride, i), edge = at_or_last(padding, i), whole = size;
    // Rounded up: of a window that begins inside.
    size = windows(up ? size + (step - 1) : size, at_or_last(kernel, i), step, edge, at_or_last(dilation, i));
    if (up && (size - 1) * step >= whole + edge) size = size - 1;
    if (size < 1) return false;
  }
  return all_results(call, sizes);
}

/// (input, output_size, ...): the last dimensions are as told.
bool resized(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const SymSizes told = call.symints(1);
  if (told.size() > sizes.size()) return false;
  std::copy(told.begin(), told.end(), sizes.end() - static_cast<int64_t>(told.size()));
  return all_results(call, sizes);
}

/// (self, pad): two numbers for each of the last dimensions, the last one first.
bool pad(SymbolicCall& call, int64_t least) {
  SymSizes sizes = call.sizes(0);
  const SymSizes pad = call.symints(1);
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    SymInt& size = sizes[sizes.size() - 1 - i];
    // Whether it grows says how the result is laid out.
    (void)(pad[2 * i] > 0);
    (void)(pad[2 * i + 1] > 0);
    size = size + pad[2 * i] + pad[2 * i + 1];
    if (size < least) return false;
  }
  return all_results(call, sizes);
}

bool constant_pad(SymbolicCall& call) { return pad(call, 0); }
bool edge_pad(SymbolicCall& call) { return pad(call, 1); }

/// (self, factor): channels to pixels.
bool pixel_shuffle(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const int64_t factor = call.integer(1);
  if (sizes.size() < 3) return false;
  const size_t channel = sizes.size() - 3;
  if (sizes[channel] % (factor * factor) != 0) return false;
  sizes[channel] = sizes[channel] / (factor * factor);
  for (const size_t dim : {channel + 1, channel + 2}) sizes[dim] = sizes[dim] * factor;
  return all_results(call, sizes);
}

bool pixel_unshuffle(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const int64_t factor = call.integer(1);
  if (sizes.size() < 3) return false;
  const size_t channel = sizes.size() - 3;
  sizes[channel] = sizes[channel] * (factor * factor);
  for (const size_t dim : {channel + 1, channel + 2}) {
    if (sizes[dim] % factor != 0) return false;
    sizes[dim] = sizes[dim] / factor;
  }
  return all_results(call, sizes);
}

/// (self, kernel_size, dilation, padding, stride): a column for each place of the window.
bool im2col(SymbolicCall& call) {
  const SymSizes self = call.sizes(0), kernel = call.symints(1), dilation = call.symints(2), padding = call.symints(3),
                 stride = call.symints(4);
  if (self.size() != 4) return false;
  SymInt places = 1;
  for (size_t i = 0; i < 2; ++i) places *= windows(self[2 + i], kernel[i], stride[i], padding[i], dilation[i]);
  if (places < 1) return false;
  return all_results(call, {self[0], self[1] * kernel[0] * kernel[1], places});
}

/// (self, output_size, kernel_size, ...).
bool col2im(SymbolicCall& call) {
  const SymSizes self = call.sizes(0), output = call.symints(1), kernel = call.symints(2);
  if (self.size() != 3 || self[1] % (kernel[0] * kernel[1]) != 0) return false;
  return all_results(call, {self[0], self[1] / (kernel[0] * kernel[1]), output[0], output[1]});
}

/// (input, grid, ...): as many places as the grid has.
bool grid_sampler(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const SymSizes grid = call.sizes(1);
  if (grid.size() != sizes.size() || grid[0] != sizes[0]) return false;
  for (size_t i = 2; i < sizes.size(); ++i) sizes[i] = grid[i - 1];
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

/// (input, output_size or none, [align_corners,] scale_factors).
template <size_t scales_arg>
bool upsample_by(SymbolicCall& call) {
  if (!call.is_none(1)) return resized(call);
  SymSizes sizes = call.sizes(0);
  const std::vector<double> scales = call.arg(scales_arg).toDoubleVector();
  for (size_t i = 0; i < scales.size(); ++i) {
    const auto parts = partition(scales[i]);
    if (!parts) return false;
    sizes[i + 2] = sizes[i + 2] * parts->first / parts->second;
    if (sizes[i + 2] < 1) return false;
  }
  return all_results(call, sizes);
}

constexpr SymbolicRow rows[] = {
#define ROW_symbolic_images(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const SymbolicRow> symbolic_images_rules() { return rows; }

}  // namespace magneto::fake
