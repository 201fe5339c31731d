// Operators that move elements: indexing, gathering, scattering, concatenating, padding.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/cat_meta.h>
#include <ATen/ops/gather_meta.h>
#include <ATen/ops/index_add_meta.h>
#include <ATen/ops/index_copy_meta.h>
#include <ATen/ops/reflection_pad1d_meta.h>
#include <ATen/ops/replication_pad1d_meta.h>
#include <ATen/ops/replication_pad2d_meta.h>
#include <ATen/ops/scatter_add_meta.h>
#include <ATen/ops/scatter_meta.h>
#include <ATen/ops/scatter_reduce_meta.h>

#include "fake/structured.h"

namespace magneto::fake {
namespace {

namespace meta = at::meta;

bool is_index_dtype(c10::ScalarType dtype) { return dtype == c10::ScalarType::Long || dtype == c10::ScalarType::Int; }

// index.Tensor and index_put: x[i, :, j].

/// What advanced indexing makes of `self` and `indices` (TensorAdvancedIndexing's AdvancedIndex): the indexed
/// dimensions of self are replaced by those of the broadcast indices, the others stay around them.
struct Indexing {
  Layout source;                // self with the indexed dimensions replaced; strides 0 there
  std::vector<Layout> indices;  // the indices, with size 1 for the dimensions around them
  bool masked = false;          // a boolean index: the result's size depends on data; nothing else is filled in
};

Indexing plan_indexing(const at::Tensor& self, const std::vector<at::Tensor>& given) {
  Indexing plan;
  for (const at::Tensor& index : given) {
    if (!index.defined()) continue;
    const c10::ScalarType dtype = index.scalar_type();
    TORCH_CHECK_INDEX(is_index_dtype(dtype) || dtype == c10::ScalarType::Byte || dtype == c10::ScalarType::Bool,
                      "tensors used as indices must be long, int, byte or bool tensors");
    plan.masked = plan.masked || !is_index_dtype(dtype);
  }
  TORCH_CHECK_INDEX(static_cast<int64_t>(given.size()) <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", given.size(), ")");
  if (plan.masked) return plan;

  at::DimVector broadcast;
  bool any = false;
  for (const at::Tensor& index : given) {
    if (!index.defined()) continue;
    try {
      broadcast = any ? at::infer_size_dimvector(broadcast, index.sizes()) : at::DimVector(index.sizes());
    } catch (const c10::Error&) {
      TORCH_CHECK_INDEX(false, "shape mismatch: indexing tensors could not be broadcast together");
    }
    any = true;
  }

  // Dimensions of self in the order that indexing sees: the indexed ones must be neighbours, or they go to the front.
  std::vector<int64_t> order;
  int64_t runs = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].defined() && (i == 0 || !given[i - 1].defined())) ++runs;
  }
  auto indexed = [&](int64_t dim) { return dim < static_cast<int64_t>(given.size()) && given[dim].defined(); };
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (runs > 1 && indexed(dim)) order.push_back(dim);
  }
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (runs <= 1 || !indexed(dim)) order.push_back(dim);
  }

  size_t before = 0, after = 0;
  bool replaced = false, empty_indexed = false;
  for (int64_t dim : order) {
    if (indexed(dim)) {
      empty_indexed = empty_indexed || self.size(dim) == 0;
      if (!replaced) {
        plan.source.sizes.insert(plan.source.sizes.end(), broadcast.begin(), broadcast.end());
        plan.source.strides.insert(plan.source.strides.end(), broadcast.size(), 0);
      }
      replaced = true;
    } else {
      plan.source.sizes.push_back(self.size(dim));
      plan.source.strides.push_back(self.stride(dim));
      ++(replaced ? after : before);
    }
  }
  TORCH_CHECK_INDEX(!empty_indexed || c10::multiply_integers(broadcast) == 0,
                    "index is out of bounds for dimension with size 0");

  for (const at::Tensor& index : given) {
    if (!index.defined()) continue;
    // int32 indices are converted: a dense copy.
    const Layout own = index.scalar_type() == c10::ScalarType::Long
                           ? Layout{at::DimVector(index.sizes()), at::DimVector(index.strides())}
                           : like_layout(index);
    const auto expanded = at::inferExpandGeometry_dimvector(own.sizes, own.strides, broadcast);
    Layout& layout = plan.indices.emplace_back();
    layout.sizes.assign(before, 1);
    layout.sizes.insert(layout.sizes.end(), broadcast.begin(), broadcast.end());
    layout.sizes.insert(layout.sizes.end(), after, 1);
    const auto strides = at::detail::computeStride(expanded.sizes, expanded.strides, layout.sizes);
    layout.strides = strides ? *strides : c10::contiguous_strides(layout.sizes);
  }
  return plan;
}

/// `checked_dtypes`: _unsafe_index, which checks its indices first.
template <bool checked_dtypes>
bool index(Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (class_of(self.scalar_type()) == kNone) return false;
  const std::vector<at::Tensor> indices = call.tensors(1);
  for (const at::Tensor& index : indices) {
    TORCH_CHECK(!checked_dtypes || !index.defined() || is_index_dtype(index.scalar_type()) ||
                    index.scalar_type() == c10::ScalarType::Bool,
                "_unsafe_index found unexpected index type ", index.scalar_type());
  }
  const Indexing plan = plan_indexing(self, indices);
  if (plan.masked || plan.indices.empty()) return false;
  c10::SmallVector<Geometry, 4> operands{Geometry(plan.source)};
  for (const Layout& layout : plan.indices) operands.push_back(layout);
  const Layout layout = elementwise_layout(operands);
  call.result(call.empty(layout.sizes, layout.strides, self.scalar_type(), self.device()));
  return true;
}

/// Throws as eager does if the tensors share memory, as far as it looks.
void check_no_overlap(const at::Tensor& self, const at::Tensor& other) {
  check_no_partial_overlap(self, other);
  const bool same =
      self.is_same(other) || (self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
                              self.storage_offset() == other.storage_offset() && self.strides() == other.strides() &&
                              self.sizes() == other.sizes() && self.is_non_overlapping_and_dense());
  TORCH_CHECK(!same || self.numel() == 0,
              "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
              "memory location. Please clone() the tensor before performing the operation.");
}

/// index_put(self, indices, values, accumulate, ...).
template <bool inplace>
bool index_put(Call& call) {
  const at::Tensor &self = call.tensor(0), &values = call.tensor(2);
  if (class_of(self.scalar_type()) == kNone) return false;
  if (inplace) {
    if (values.numel() != 1) check_no_overlap(self, values);
    for (const at::Tensor& index : call.tensors(1)) {
      if (index.defined()) check_no_overlap(self, index);
    }
  }
  const Indexing plan = plan_indexing(self, call.tensors(1));
  TORCH_CHECK(self.scalar_type() == values.scalar_type(),
              "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
              " for the destination and ", values.scalar_type(), " for the source.");
  if (!plan.masked) {  // whether the values fit a mask, the kernel says
    TORCH_CHECK(at::is_expandable_to(values.sizes(), plan.source.sizes), "shape mismatch: value tensor of shape ",
                values.sizes(), " cannot be broadcast to indexing result of shape ",
                at::IntArrayRef(plan.source.sizes));
  }
  call.result(inplace ? self : new_like(call, self, self.scalar_type(), self.device()));
  return true;
}

// Selections along a dimension.

/// The result of index_select; throws like it.
at::DimVector selected_sizes(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(is_index_dtype(index.scalar_type()), "index_select(): Expected dtype int32 or int64 for index");
  at::DimVector sizes(self.sizes());
  if (!sizes.empty()) {
    sizes[dim] = index.numel();
  } else {
    TORCH_CHECK(index.numel() == 1, "index_select(): Index to scalar can have only 1 value, got ", index.numel(),
                " value(s)");
  }
  return sizes;
}

bool index_select(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const at::DimVector sizes = selected_sizes(self, call.integer(1), call.tensor(2));
  call.result(call.empty(sizes, self.scalar_type(), self.device()));
  return true;
}

void check_embedding_indices(const at::Tensor& indices) {
  TORCH_CHECK(
      is_index_dtype(indices.scalar_type()),
      "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got ",
      indices.toString(), " instead (while checking arguments for embedding)");
}

bool embedding(Call& call) {
  const at::Tensor &weight = call.tensor(0), &indices = call.tensor(1);
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  check_embedding_indices(indices);
  at::DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  call.result(call.empty(sizes, weight.scalar_type(), weight.device()));
  return true;
}

/// weight, indices, offsets, scale_grad_by_freq, mode (0: sum, 1: mean, 2: max), sparse, per_sample_weights,
/// include_last_offset, padding_idx: what layers with one bag after the other ask for.
bool embedding_bag(Call& call) {
  const at::Tensor &weight = call.tensor(0), &indices = call.tensor(1), &offsets = call.tensor(2);
  const c10::ScalarType dtype = indices.scalar_type();
  if (weight.dim() != 2 || indices.dim() != 1 || offsets.dim() != 1 || weight.stride(1) != 1) return false;
  if (!is_index_dtype(dtype) || dtype != offsets.scalar_type() || weight.scalar_type() != c10::kFloat) return false;
  if (call.optional_tensor(6).defined() || call.boolean(7) || call.integer(8) >= 0 || !weight.device().is_cpu())
    return false;
  const int64_t bags = offsets.size(0), mode = call.integer(4);
  // Sums need not know which bag an index is of.
  const int64_t owners = mode == 0 ? 0 : indices.size(0);
  call.result(call.empty({bags, weight.size(1)}, weight.scalar_type(), weight.device()));
  call.result(call.empty({owners}, dtype, weight.device()));
  call.result(call.empty({bags}, dtype, weight.device()));
  const at::DimVector largest = mode == 2 ? at::DimVector{bags, weight.size(1)} : at::DimVector{bags};
  call.result(call.empty(largest, dtype, weight.device()));
  return true;
}

/// embedding_dense_backward(grad, indices, num_weights, ...).
bool embedding_dense_backward(Call& call) {
  const at::Tensor& grad = call.tensor(0);
  check_embedding_indices(call.tensor(1));
  call.result(call.empty({call.integer(2), grad.size(-1)}, grad.scalar_type(), grad.device()));
  return true;
}

bool take(Call& call) {
  const at::Tensor &self = call.tensor(0), &index = call.tensor(1);
  TORCH_CHECK(index.scalar_type() == c10::ScalarType::Long, "take(): Expected a long tensor for index, but got ",
              index.scalar_type());
  if (self.numel() == 0 || !index.is_contiguous()) return false;
  call.result(call.empty(index.sizes(), self.scalar_type(), self.device()));
  return true;
}

bool masked_scatter(Call& call) {
  const at::Tensor &self = call.tensor(0), &mask = call.tensor(1), &source = call.tensor(2);
  const at::DimVector sizes = at::infer_size_dimvector(mask.sizes(), self.sizes());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes but got ", self.scalar_type(), " and ",
              source.scalar_type());
  if (mask.scalar_type() != c10::ScalarType::Bool) return false;
  call.result(call.empty(sizes, self.scalar_type(), self.device()));
  return true;
}

// Concatenations and copies.

/// True if no tensor, seen as an image or a volume, could lead eager to a channels-last result.
bool all_contiguous(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_contiguous(); });
}

bool cat(Call& call) {
  for (const at::Tensor& tensor : call.tensors(0)) {
    if (class_of(tensor.scalar_type()) == kNone) return false;
  }
  return structured<meta::structured_cat>(call);
}

bool stack(Call& call) {
  const std::vector<at::Tensor> tensors = call.tensors(0);
  TORCH_CHECK(!tensors.empty(), "stack expects a non-empty TensorList");
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), tensors[0].dim() + 1);
  Operands operands;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK(tensors[i].sizes() == tensors[0].sizes(), "stack expects each tensor to be equal size, but got ",
                tensors[0].sizes(), " at entry 0 and ", tensors[i].sizes(), " at entry ", i);
    operands.add(tensors[i]);
  }
  const c10::ScalarType dtype = operands.promoted();
  const bool image = tensors[0].dim() == 3 || tensors[0].dim() == 4;
  if (class_of(dtype) == kNone || (image && !all_contiguous(tensors))) return false;
  at::DimVector sizes(tensors[0].sizes());
  sizes.insert(sizes.begin() + dim, static_cast<int64_t>(tensors.size()));
  call.result(call.empty(sizes, dtype, operands.device()));
  return true;
}

bool repeat(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> repeats = call.ints(1);
  TORCH_CHECK(static_cast<int64_t>(repeats.size()) >= self.dim(),
              "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
  at::DimVector sizes(repeats.begin(), repeats.end());
  const size_t padding = repeats.size() - self.dim();
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK(repeats[i] >= 0, "Repeats must be non-negative, got ", repeats[i], " at index ", i);
    if (i >= padding) sizes[i] *= self.size(i - padding);
  }
  call.result(call.empty(sizes, self.scalar_type(), self.device()));
  return true;
}

bool flip(Call& call) {
  const at::Tensor& self = call.tensor(0);
  std::vector<bool> seen(std::max<int64_t>(self.dim(), 1));
  for (int64_t dim : call.ints(1)) {
    dim = at::maybe_wrap_dim(dim, self.dim());
    TORCH_CHECK(!seen[dim], "dim ", dim, " appears multiple times in the list of dims");
    seen[dim] = true;
  }
  if (class_of(self.scalar_type()) == kNone) return false;
  call.result(new_like(call, self, self.scalar_type(), self.device()));
  return true;
}

bool roll(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> shifts = call.ints(1), dims = call.ints(2);
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  TORCH_CHECK((dims.empty() && shifts.size() == 1) || shifts.size() == dims.size(),
              "shifts and dimensions must align. shifts: ", shifts.size(), ", dims:", dims.size());
  if (self.numel() == 0) {
    call.result(new_like(call, self, self.scalar_type(), self.device(),
                         dims.empty() ? at::MemoryFormat::Contiguous : at::MemoryFormat::Preserve));
    return true;
  }
  if (!self.is_contiguous() || self.suggest_memory_format() != at::MemoryFormat::Contiguous) return false;
  for (int64_t dim : dims) {
    TORCH_CHECK_INDEX(self.dim() > 0, "Dimension specified as ", dim, " but tensor has no dimensions");
    at::maybe_wrap_dim(dim, self.dim());
  }
  call.result(call.empty(self.sizes(), self.scalar_type(), self.device()));
  return true;
}

// Padding.

bool constant_pad_nd(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> pad = call.ints(1);
  const int64_t padded = static_cast<int64_t>(pad.size()) / 2;
  TORCH_CHECK(pad.size() % 2 == 0, "Length of pad must be even but instead it equals ", pad.size());
  TORCH_CHECK(self.dim() >= padded,
              "Length of pad should be no more than twice the number of dimensions of the input. ", "Pad length is ",
              pad.size(), " while the input has ", self.dim(), " dimensions.");
  at::DimVector sizes(self.sizes());
  bool grows = false;
  for (int64_t i = 0; i < padded; ++i) {
    const int64_t dim = self.dim() - 1 - i, low = pad[2 * i], high = pad[2 * i + 1];
    sizes[dim] += low + high;
    grows = grows || low > 0 || high > 0;
    TORCH_CHECK(sizes[dim] >= 0, "The input size ", self.size(dim), ", plus negative padding ", low, " and ", high,
                " resulted in a negative output size, which is invalid.");
  }
  if (grows) {
    const at::DimVector strides = strides_in_format(sizes, self.suggest_memory_format());
    call.result(call.empty(sizes, strides, self.scalar_type(), self.device()));
  } else {  // a copy of the narrowed input
    const Layout layout = like_layout(Geometry(sizes, self.strides()));
    call.result(call.empty(layout.sizes, layout.strides, self.scalar_type(), self.device()));
  }
  return true;
}

/// replication_pad2d of images that are not channels-last, which its meta function doesn't know.
bool replication_pad2d(Call& call) {
  return call.tensor(0).suggest_memory_format() == at::MemoryFormat::Contiguous &&
         structured<meta::structured_replication_pad2d>(call);
}

/// reflection_pad2d of contiguous images.
bool reflection_pad2d(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> pad = call.ints(1);
  if (!self.is_contiguous() || self.suggest_memory_format() != at::MemoryFormat::Contiguous ||
      (self.dim() != 3 && self.dim() != 4) || self.numel() == 0 || pad.size() != 4) {
    return false;
  }
  at::DimVector sizes(self.sizes());
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t dim = self.dim() - 1 - i, low = pad[2 * i], high = pad[2 * i + 1];
    TORCH_CHECK(low < self.size(dim) && high < self.size(dim),
                "Argument #4: Padding size should be less than the corresponding input dimension, but got: padding (",
                low, ", ", high, ") at dimension ", dim, " of input ", self.sizes());
    sizes[dim] += low + high;
    if (sizes[dim] <= 0) return false;
  }
  call.result(call.empty(sizes, self.scalar_type(), self.device()));
  return true;
}

// Searches and draws.

/// bucketize(self, boundaries, out_int32, right), searchsorted(sorted, self, out_int32, ...).
template <size_t values, size_t out_int32>
bool search(Call& call) {
  const at::Tensor& self = call.tensor(values);
  const at::Tensor& boundaries = call.tensor(1 - values);
  if (!self.is_contiguous() || boundaries.dim() != 1 || self.scalar_type() != boundaries.scalar_type()) return false;
  if (call.size() > 4 && (!call.is_none(4) || !call.is_none(5))) return false;
  call.result(
      call.empty(self.sizes(), call.boolean(out_int32) ? c10::ScalarType::Int : c10::ScalarType::Long, self.device()));
  return true;
}

bool multinomial(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t count = call.integer(1);
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(class_of(self.scalar_type()) & kFloats,
              "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(call.boolean(2) || count <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  at::DimVector sizes(self.sizes());
  sizes.back() = count;
  call.result(call.empty(sizes, c10::ScalarType::Long, self.device()));
  return true;
}

bool histc(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t bins = call.integer(1);
  if (bins <= 0 || self.numel() == 0) return false;
  call.result(call.empty({bins}, self.scalar_type(), self.device()));
  return true;
}

constexpr RuleRow rows[] = {
#define ROW_shape_indexing(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const RuleRow> indexing_rules() { return rows; }

}  // namespace magneto::fake
