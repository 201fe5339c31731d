// Views: new sizes, strides and offset over the same storage.
#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/native/Resize.h>

#include "fake/elementwise.h"
#include "fake/fake_impl.h"

namespace magneto::fake {
namespace {

/// The geometry that a view operator computes, from its base's.
struct View {
  at::DimVector sizes, strides;
  int64_t offset;

  explicit View(const at::Tensor& base) : sizes(base.sizes()), strides(base.strides()), offset(base.storage_offset()) {}

  void erase(int64_t dim) {
    sizes.erase(sizes.begin() + dim);
    strides.erase(strides.begin() + dim);
  }
  void insert(int64_t dim, int64_t size, int64_t stride) {
    sizes.insert(sizes.begin() + dim, size);
    strides.insert(strides.begin() + dim, stride);
  }
  void swap(int64_t dim0, int64_t dim1) {
    std::swap(sizes[dim0], sizes[dim1]);
    std::swap(strides[dim0], strides[dim1]);
  }
  /// [start, start + length) with steps.
  void narrow(int64_t dim, int64_t start, int64_t length, int64_t step = 1) {
    offset += start * strides[dim];
    sizes[dim] = (length + step - 1) / step;
    strides[dim] *= step;
  }
};

/// Computes the geometry of a view of argument 0.
using Compute = void (*)(const Call& call, View& view);

template <Compute compute>
bool view_of(Call& call) {
  View view(call.tensor(0));
  compute(call, view);
  call.result(call.view(call.tensor(0), view.sizes, view.strides, view.offset));
  return true;
}

/// unsqueeze_, t_, ...: argument 0 itself changes its geometry.
template <Compute compute>
bool reshape_inplace(Call& call) {
  const at::Tensor& self = call.tensor(0);
  View view(self);
  compute(call, view);
  call.restride(self, view.sizes, view.strides, view.offset);
  call.result(self);
  return true;
}

void same(const Call&, View&) {}

void reshaped(const Call& call, View& view) {
  const at::Tensor& self = call.tensor(0);
  const at::DimVector sizes = at::infer_size_dv(call.ints(1), self.numel());
  const auto strides = at::detail::computeStride(self.sizes(), self.strides(), sizes);
  TORCH_CHECK(
      strides.has_value(),
      "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
      "contiguous subspaces). Use .reshape(...) instead.");
  view.sizes = sizes;
  view.strides = *strides;
}

void reshape_alias(const Call& call, View& view) {
  view.sizes = at::DimVector(call.ints(1));
  view.strides = at::DimVector(call.ints(2));
}

void expand(const Call& call, View& view) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> sizes = call.ints(1);
  TORCH_CHECK(static_cast<int64_t>(sizes.size()) >= self.dim(), "expand(", self.toString(), "{", self.sizes(),
              "}, size=", at::IntArrayRef(sizes), "): the number of sizes provided (", sizes.size(),
              ") must be greater or equal to the number of dimensions in the tensor (", self.dim(), ")");
  auto geometry = at::inferExpandGeometry_dimvector(self.sizes(), self.strides(), sizes);
  view.sizes = std::move(geometry.sizes);
  view.strides = std::move(geometry.strides);
}

void permute(const Call& call, View& view) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> dims = call.ints(1);
  TORCH_CHECK(static_cast<int64_t>(dims.size()) == self.dim(),
              "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
              "ordering of dimensions i.e. input.dim() = ",
              self.dim(), " is not equal to len(dims) = ", dims.size());
  std::vector<bool> seen(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = at::maybe_wrap_dim(dims[i], self.dim());
    TORCH_CHECK(!seen[dim], "permute(): duplicate dims are not allowed.");
    seen[dim] = true;
    view.sizes[i] = self.size(dim);
    view.strides[i] = self.stride(dim);
  }
}

void transpose(const Call& call, View& view) {
  const int64_t rank = call.tensor(0).dim();
  const int64_t dim0 = at::maybe_wrap_dim(call.integer(1), rank), dim1 = at::maybe_wrap_dim(call.integer(2), rank);
  if (dim0 != dim1) view.swap(dim0, dim1);
}

void t(const Call& call, View& view) {
  const int64_t rank = call.tensor(0).dim();
  TORCH_CHECK(rank <= 2, "t() expects a tensor with <= 2 dimensions, but self is ", rank, "D");
  if (rank == 2) view.swap(0, 1);
}

void squeeze(const Call& call, View& view) {
  for (int64_t dim = static_cast<int64_t>(view.sizes.size()); dim-- > 0;) {
    if (view.sizes[dim] == 1) view.erase(dim);
  }
}

void squeeze_dim(const Call& call, View& view) {
  const int64_t rank = call.tensor(0).dim();
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), rank);
  if (rank > 0 && view.sizes[dim] == 1) view.erase(dim);
}

void squeeze_dims(const Call& call, View& view) {
  const int64_t rank = call.tensor(0).dim();
  const std::vector<int64_t> dims = call.ints(1);
  const auto mask = at::dim_list_to_bitset(dims, rank);
  for (int64_t dim = rank; dim-- > 0;) {
    if (mask[dim] && view.sizes[dim] == 1) view.erase(dim);
  }
}

void unsqueeze(const Call& call, View& view) {
  const int64_t rank = call.tensor(0).dim();
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), rank + 1);
  view.insert(dim, 1, dim == rank ? 1 : view.sizes[dim] * view.strides[dim]);
}

void select(const Call& call, View& view) {
  const at::Tensor& self = call.tensor(0);
  TORCH_CHECK_INDEX(self.dim() > 0, "select() cannot be applied to a 0-dim tensor.");
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), self.dim());
  const int64_t index = call.integer(2), size = view.sizes[dim];
  TORCH_CHECK_INDEX(-size <= index && index < size, "select(): index ", index, " out of range for tensor of size ",
                    self.sizes(), " at dimension ", dim);
  view.offset += (index < 0 ? index + size : index) * view.strides[dim];
  view.erase(dim);
}

/// magneto::select(Tensor(a) self, int dim, Tensor index) -> Tensor(a): where the view begins, only the run knows.
bool select_unknown(Call& call) {
  const at::Tensor& self = call.tensor(0);
  View view(self);
  view.erase(call.integer(1));
  as_fake(self)->note_unplaced();
  call.result(call.view(self, view.sizes, view.strides, view.offset));
  return true;
}

/// magneto::view_as(Tensor(a) self, int[] size, int[] stride, int offset) -> Tensor(a)
void view_as(const Call& call, View& view) {
  view.sizes = at::DimVector(call.ints(1));
  view.strides = at::DimVector(call.ints(2));
  view.offset += call.integer(3);
}

void slice(const Call& call, View& view) {
  const at::Tensor& self = call.tensor(0);
  TORCH_CHECK_INDEX(self.dim() > 0, "slice() cannot be applied to a 0-dim tensor.");
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), self.dim());
  const int64_t size = view.sizes[dim], step = call.integer(4);
  TORCH_CHECK(step > 0, "slice step must be positive");
  int64_t start = call.is_none(2) ? 0 : call.integer(2);
  int64_t end = call.is_none(3) ? INT64_MAX : call.integer(3);
  if (start < 0) start += size;
  if (end < 0) end += size;
  start = std::clamp<int64_t>(start, 0, size);
  end = std::clamp<int64_t>(end, start, size);
  view.narrow(dim, start, end - start, step);
}

void as_strided(const Call& call, View& view) {
  const at::Tensor& self = call.tensor(0);
  view.sizes = at::DimVector(call.ints(1));
  view.strides = at::DimVector(call.ints(2));
  if (!call.is_none(3)) view.offset = call.integer(3);
  TORCH_CHECK(view.sizes.size() == view.strides.size(), "mismatch in length of strides and shape");
  for (int64_t stride : view.strides) {
    TORCH_CHECK(stride >= 0, "as_strided: Negative strides are not supported at the moment, got strides: ",
                at::IntArrayRef(view.strides));
  }
  TORCH_CHECK(view.offset >= 0, "Tensor: invalid storage offset ", view.offset);
  at::native::checkInBoundsForStorage(at::IntArrayRef(view.sizes), at::IntArrayRef(view.strides), view.offset,
                                      self.dtype(), self.storage());
}

void diagonal(const Call& call, View& view) {
  const at::Tensor& self = call.tensor(0);
  const int64_t offset = call.integer(1);
  const int64_t dim1 = at::maybe_wrap_dim(call.integer(2), self.dim());
  const int64_t dim2 = at::maybe_wrap_dim(call.integer(3), self.dim());
  TORCH_CHECK(dim1 != dim2, "diagonal dimensions cannot be identical ", dim1, ", ", dim2);
  const int64_t rows = self.size(dim1) + std::min<int64_t>(offset, 0);
  const int64_t columns = self.size(dim2) - std::max<int64_t>(offset, 0);
  const int64_t length = std::max<int64_t>(std::min(rows, columns), 0);
  if (length > 0) view.offset += offset >= 0 ? offset * self.stride(dim2) : -offset * self.stride(dim1);
  const int64_t stride = self.stride(dim1) + self.stride(dim2);
  view.erase(std::max(dim1, dim2));
  view.erase(std::min(dim1, dim2));
  view.insert(static_cast<int64_t>(view.sizes.size()), length, stride);
}

void unfold(const Call& call, View& view) {
  const at::Tensor& self = call.tensor(0);
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), self.dim());
  const int64_t size = call.integer(2), step = call.integer(3);
  const bool number = self.dim() == 0;
  const int64_t extent = number ? 1 : self.size(dim);
  TORCH_CHECK(size >= 0, "size is ", size, " but must be >= 0");
  TORCH_CHECK(size <= extent, "maximum size for tensor at dimension ", dim, " is ", extent, " but size is ", size);
  TORCH_CHECK(step > 0, "step is ", step, " but must be > 0");
  const int64_t stride = number ? 1 : self.stride(dim);
  if (!number) {
    view.sizes[dim] = (extent - size) / step + 1;
    view.strides[dim] = step * stride;
  }
  view.insert(self.dim(), size, stride);
}

// Views with several results.

void add_slices(Call& call, int64_t dim, at::ArrayRef<int64_t> lengths) {
  std::vector<at::Tensor> parts;
  int64_t start = 0;
  for (int64_t length : lengths) {
    View view(call.tensor(0));
    view.narrow(dim, start, length);
    parts.push_back(call.view(call.tensor(0), view.sizes, view.strides, view.offset));
    start += length;
  }
  call.result(std::move(parts));
}

bool split(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t length = call.integer(1);
  TORCH_CHECK(self.dim() != 0, "split expects at least a 1-dimensional tensor");
  TORCH_CHECK(length >= 0, "split expects split_size be non-negative, but got split_size=", length);
  const int64_t dim = at::maybe_wrap_dim(call.integer(2), self.dim());
  const int64_t size = self.size(dim);
  TORCH_CHECK(length > 0 || size == 0, "split_size can only be 0 if dimension size is 0, but got dimension size of ",
              size);
  const int64_t count = length == 0 ? 1 : std::max<int64_t>((size + length - 1) / length, 1);
  std::vector<int64_t> lengths(count, length);
  lengths.back() = length - (length * count - size);
  add_slices(call, dim, lengths);
  return true;
}

bool split_with_sizes(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> lengths = call.ints(1);
  TORCH_CHECK(self.dim() != 0, "split expects at least a 1-dimensional tensor");
  const int64_t dim = at::maybe_wrap_dim(call.integer(2), self.dim());
  int64_t total = 0;
  for (int64_t length : lengths) {
    TORCH_CHECK(length >= 0,
                "split_with_sizes expects split_sizes have only non-negative entries, but got split_sizes=",
                at::IntArrayRef(lengths));
    total += length;
  }
  TORCH_CHECK(total == self.size(dim), "split_with_sizes expects split_sizes to sum exactly to ", self.size(dim),
              " (input tensor's size at dimension ", dim, "), but got split_sizes=", at::IntArrayRef(lengths));
  add_slices(call, dim, lengths);
  return true;
}

bool unbind(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), self.dim());
  TORCH_CHECK_INDEX(self.dim() > 0, "Dimension specified as ", call.integer(1), " but tensor has no dimensions");
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < self.size(dim); ++i) {
    View view(self);
    view.offset += i * view.strides[dim];
    view.erase(dim);
    parts.push_back(call.view(self, view.sizes, view.strides, view.offset));
  }
  call.result(std::move(parts));
  return true;
}

// Views that read another dtype.

bool view_as_real(Call& call) {
  const at::Tensor& self = call.tensor(0);
  TORCH_CHECK(self.is_complex(), "view_as_real is only supported for complex tensors");
  if (self.is_conj() || class_of(self.scalar_type()) == kNone) return false;
  View view(self);
  for (int64_t& stride : view.strides) stride *= 2;
  view.insert(self.dim(), 2, 1);
  call.result(
      call.view(self, view.sizes, view.strides, 2 * self.storage_offset(), c10::toRealValueType(self.scalar_type())));
  return true;
}

bool view_as_complex(Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (!(class_of(self.scalar_type()) & kSingles)) return false;
  TORCH_CHECK(self.dim() > 0, "Input tensor must have one or more dimensions");
  TORCH_CHECK(self.size(-1) == 2, "Tensor must have a last dimension of size 2");
  View view(self);
  TORCH_CHECK(view.strides.back() == 1, "Tensor must have a last dimension with stride 1");
  view.erase(self.dim() - 1);
  for (int64_t& stride : view.strides) {
    TORCH_CHECK(stride % 2 == 0, "Tensor must have a stride divisible by 2 for all but last dimension");
    stride /= 2;
  }
  TORCH_CHECK(self.storage_offset() % 2 == 0, "Tensor must have a storage_offset divisible by 2");
  call.result(
      call.view(self, view.sizes, view.strides, self.storage_offset() / 2, c10::toComplexType(self.scalar_type())));
  return true;
}

/// view.dtype between dtypes of one size; others resize the last dimension and are rare.
bool view_dtype(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const c10::ScalarType dtype = call.arg(1).toScalarType();
  if (class_of(dtype) == kNone || class_of(self.scalar_type()) == kNone || self.is_conj() || self.is_neg())
    return false;
  if (c10::elementSize(dtype) != self.itemsize()) return false;
  call.result(call.view(self, self.sizes(), self.strides(), self.storage_offset(), dtype));
  return true;
}

constexpr RuleRow rows[] = {
#define ROW_shape_view(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const RuleRow> view_rules() { return rows; }

}  // namespace magneto::fake
