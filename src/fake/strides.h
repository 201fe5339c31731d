// The strides that eager gives to results: TensorIterator's for elementwise operators, `empty_like`'s for copies.
//
// TensorIterator has a fast path (all operands have one shape and are all contiguous, all channels-last, or dense with
// the same strides) and a general one, which sorts the dimensions by the operands' strides. Both decide what the user
// sees in `x.stride()`, so both are followed here step by step.
#pragma once

#include <ATen/DimVector.h>
#include <ATen/core/Tensor.h>
#include <c10/util/strides.h>

namespace magneto::fake {

/// Sizes and strides of one operand; borrowed.
struct Geometry {
  at::IntArrayRef sizes;
  at::IntArrayRef strides;

  Geometry(const at::Tensor& tensor) : sizes(tensor.sizes()), strides(tensor.strides()) {}
  Geometry(at::IntArrayRef sizes, at::IntArrayRef strides) : sizes(sizes), strides(strides) {}
  /// A number: no dimensions.
  static Geometry scalar() { return {at::IntArrayRef(), at::IntArrayRef()}; }

  int64_t numel() const;
  bool is_contiguous() const;
  bool is_channels_last() const;  // of images: four dimensions
  bool is_dense() const;          // non-overlapping and dense
};

/// Sizes and strides of one result; owned.
struct Layout {
  at::DimVector sizes;
  at::DimVector strides;

  operator Geometry() const { return {sizes, strides}; }
};

/// The strides of a new tensor in `format` (Contiguous, ChannelsLast, ChannelsLast3d); throws like `torch.empty`.
at::DimVector strides_in_format(at::IntArrayRef sizes, at::MemoryFormat format);

/// The result of an elementwise operator over `operands`, in the order in which eager adds them to its TensorIterator.
/// Throws eager's error if they don't broadcast.
Layout elementwise_layout(at::ArrayRef<Geometry> operands);

/// The result of `empty_like(source, memory_format)`, `clone`, `_to_copy`. Preserve keeps the permutation.
Layout like_layout(const Geometry& source, at::MemoryFormat format = at::MemoryFormat::Preserve);

}  // namespace magneto::fake
