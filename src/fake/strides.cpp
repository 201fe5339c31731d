#include "fake/strides.h"

#include <ATen/ExpandUtils.h>
#include <c10/core/Contiguity.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace magneto::fake {

int64_t Geometry::numel() const {
  if (std::ranges::find(sizes, 0) != sizes.end()) return 0;
  int64_t numel = 1;
  for (const int64_t size : sizes) {
    // PyTorch raises when such a tensor is made.
    if (__builtin_mul_overflow(numel, size, &numel)) return std::numeric_limits<int64_t>::max();
  }
  return numel;
}
bool Geometry::is_contiguous() const { return c10::_compute_contiguous<int64_t>(sizes, strides, numel()); }
bool Geometry::is_channels_last() const { return c10::_compute_channels_last_contiguous_2d<int64_t>(sizes, strides); }
bool Geometry::is_dense() const {
  return is_contiguous() || is_channels_last() || c10::_compute_channels_last_contiguous_3d<int64_t>(sizes, strides) ||
         c10::_compute_non_overlapping_and_dense<int64_t>(sizes, strides);
}

at::DimVector strides_in_format(at::IntArrayRef sizes, at::MemoryFormat format) {
  switch (format) {
    case at::MemoryFormat::Contiguous:
      return c10::contiguous_strides(sizes);
    case at::MemoryFormat::ChannelsLast:
      TORCH_CHECK(sizes.size() == 4, "required rank 4 tensor to use channels_last format");
      return at::DimVector(c10::get_channels_last_strides_2d(sizes));
    case at::MemoryFormat::ChannelsLast3d:
      TORCH_CHECK(sizes.size() == 5, "required rank 5 tensor to use channels_last_3d format");
      return at::DimVector(c10::get_channels_last_strides_3d(sizes));
    default:
      TORCH_CHECK(false, "unsupported memory format ", format);
  }
}

namespace {

/// The broadcast shape. `same` tells whether broadcasting had nothing to do (a number beside a tensor counts as
/// broadcasting, although the shape is the tensor's).
at::DimVector broadcast(at::ArrayRef<Geometry> operands, bool* same) {
  at::DimVector shape;
  bool first = true, has_scalars = false, has_tensors = false;
  *same = true;
  for (const Geometry& operand : operands) {
    (operand.sizes.empty() ? has_scalars : has_tensors) = true;
    if (has_scalars && has_tensors) *same = false;
    if (first || shape.empty()) {
      shape.assign(operand.sizes.begin(), operand.sizes.end());
      first = false;
    } else if (operand.sizes != at::IntArrayRef(shape)) {
      *same = false;
      shape = at::infer_size_dimvector(shape, operand.sizes);
    }
  }
  return shape;
}

/// TensorIterator's fast path; false if the operands don't allow it.
bool fast_strides(at::ArrayRef<Geometry> operands, at::IntArrayRef shape, at::DimVector* strides) {
  bool contiguous = true, channels_last = true, dense = true;
  for (const Geometry& operand : operands) {
    contiguous = contiguous && operand.is_contiguous();
    channels_last = channels_last && operand.is_channels_last();
    dense = dense && operand.is_dense();
  }
  if (contiguous) {
    *strides = c10::contiguous_strides(shape);
  } else if (channels_last) {
    *strides = strides_in_format(shape, at::MemoryFormat::ChannelsLast);
  } else if (dense) {
    for (const Geometry& operand : operands) {
      if (operand.strides != operands.back().strides) return false;
    }
    strides->assign(operands.back().strides.begin(), operands.back().strides.end());
  } else {
    return false;
  }
  return true;
}

/// TensorIterator's general path (reorder_dimensions): the dimensions, fastest moving first, sorted by the operands'
/// strides; earlier operands have the say, ties go to the next one.
at::DimVector sorted_dimensions(at::ArrayRef<Geometry> operands, at::IntArrayRef shape) {
  const int64_t rank = static_cast<int64_t>(shape.size());
  c10::SmallVector<at::DimVector, 4> strides;  // broadcast dimensions: 0
  for (const Geometry& operand : operands) {
    at::DimVector& row = strides.emplace_back(rank, 0);
    const int64_t offset = rank - static_cast<int64_t>(operand.sizes.size());
    for (int64_t i = offset; i < rank; ++i) {
      const bool stretched = operand.sizes[i - offset] == 1 && shape[i] != 1;
      row[i] = stretched ? 0 : operand.strides[i - offset];
    }
  }
  auto should_swap = [&](int64_t dim0, int64_t dim1) {
    for (const at::DimVector& row : strides) {
      const int64_t stride0 = row[dim0], stride1 = row[dim1];
      if (stride0 == 0 || stride1 == 0) continue;
      if (stride0 != stride1) return stride0 < stride1 ? -1 : 1;
      if (shape[dim0] > shape[dim1]) return 1;
    }
    return 0;
  };
  at::DimVector order(rank);
  std::iota(order.rbegin(), order.rend(), 0);
  // An insertion sort, because the comparison is ambiguous: another algorithm would give another order.
  for (int64_t i = 1; i < rank; ++i) {
    int64_t dim1 = i;
    for (int64_t dim0 = i - 1; dim0 >= 0; --dim0) {
      const int comparison = should_swap(order[dim0], order[dim1]);
      if (comparison < 0) break;
      if (comparison > 0) {
        std::swap(order[dim0], order[dim1]);
        dim1 = dim0;
      }
    }
  }
  return order;
}

}  // namespace

Layout elementwise_layout(at::ArrayRef<Geometry> operands) {
  Layout result;
  bool same;
  result.sizes = broadcast(operands, &same);
  if (same && fast_strides(operands, result.sizes, &result.strides)) return result;
  const at::DimVector order = sorted_dimensions(operands, result.sizes);
  const int64_t rank = static_cast<int64_t>(order.size());
  bool natural = true;
  for (int64_t i = 0; i < rank; ++i) natural = natural && order[i] == rank - i - 1;
  if (natural) {
    result.strides = c10::contiguous_strides(result.sizes);
    return result;
  }
  // Unlike contiguous strides, these become 0 beyond an empty dimension.
  result.strides.resize(rank);
  int64_t next = 1;
  for (int64_t dim : order) {
    result.strides[dim] = next;
    next *= result.sizes[dim];
  }
  return result;
}

Layout like_layout(const Geometry& source, at::MemoryFormat format) {
  Layout result;
  result.sizes.assign(source.sizes.begin(), source.sizes.end());
  if (format != at::MemoryFormat::Preserve) {
    result.strides = strides_in_format(source.sizes, format);
  } else if (source.is_dense()) {
    result.strides.assign(source.strides.begin(), source.strides.end());
  } else {
    const std::vector<int64_t> strides = at::infer_dense_strides(source.sizes, source.strides);
    result.strides.assign(strides.begin(), strides.end());
  }
  return result;
}

}  // namespace magneto::fake
