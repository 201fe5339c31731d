// Operators that move elements: indexing, gathering, scattering, concatenating, padding. Those that are not PyTorch's
// structured ones serve numbers and sizes (shape_rules.h).
#include <ATen/ExpandUtils.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/cat_meta.h>
#include <ATen/ops/gather_meta.h>
#include <ATen/ops/index_add_meta.h>
#include <ATen/ops/index_copy_meta.h>
#include <ATen/ops/index_reduce_meta.h>
#include <ATen/ops/reflection_pad1d_meta.h>
#include <ATen/ops/replication_pad1d_meta.h>
#include <ATen/ops/replication_pad2d_meta.h>
#include <ATen/ops/scatter_add_meta.h>
#include <ATen/ops/scatter_meta.h>
#include <ATen/ops/scatter_reduce_meta.h>

#include "fake/shape_rules.h"
#include "fake/structured.h"

namespace magneto::fake {
namespace {

namespace meta = at::meta;

bool is_index_dtype(c10::ScalarType dtype) { return dtype == c10::ScalarType::Long || dtype == c10::ScalarType::Int; }

// index.Tensor and index_put: x[i, :, j].

/// What advanced indexing makes of a shape: the dimensions that have an index are replaced by those of the broadcast
/// indices; the others stay around them.
struct Indexing {
  std::vector<at::Tensor> indices;     // by dimension; undefined: none
  bool masked = false;                 // a boolean index: the result's size depends on data; nothing else is filled in
  std::vector<int64_t> before, after;  // the dimensions that stay

  explicit Indexing(std::vector<at::Tensor> given) : indices(std::move(given)) {}
  bool has(int64_t dim) const { return dim < static_cast<int64_t>(indices.size()) && indices[dim].defined(); }
  bool is_empty() const {
    return std::none_of(indices.begin(), indices.end(), [](const at::Tensor& index) { return index.defined(); });
  }
};

/// Checks the indices, and says which dimensions stay.
Indexing plan_indexing(const at::Tensor& self, std::vector<at::Tensor> given) {
  Indexing plan(std::move(given));
  for (const at::Tensor& index : plan.indices) {
    if (!index.defined()) continue;
    const c10::ScalarType dtype = index.scalar_type();
    TORCH_CHECK_INDEX(is_index_dtype(dtype) || dtype == c10::ScalarType::Byte || dtype == c10::ScalarType::Bool,
                      "tensors used as indices must be long, int, byte or bool tensors");
    plan.masked = plan.masked || !is_index_dtype(dtype);
  }
  TORCH_CHECK_INDEX(static_cast<int64_t>(plan.indices.size()) <= self.dim(),
                    "too many indices for tensor of dimension ", self.dim(), " (got ", plan.indices.size(), ")");
  if (plan.masked) return plan;
  // Indexed dimensions must be neighbours, or they go to the front.
  int64_t first = -1, runs = 0;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!plan.has(dim)) continue;
    if (dim == 0 || !plan.has(dim - 1)) ++runs;
    if (first < 0) first = dim;
  }
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!plan.has(dim)) (runs <= 1 && (first < 0 || dim < first) ? plan.before : plan.after).push_back(dim);
  }
  return plan;
}

/// The sizes of what is indexed.
template <class C>
Sizes<C> indexed_sizes(const at::Tensor& self, const Indexing& plan) {
  Sizes<C> chosen, sizes;
  bool empty_indexed = false;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!plan.has(dim)) continue;
    try {
      chosen = broadcast(chosen, sizes_of<C>(plan.indices[dim]));
    } catch (const c10::Error&) {
      TORCH_CHECK_INDEX(false, "shape mismatch: indexing tensors could not be broadcast together");
    }
    if (kPlain<C>) empty_indexed = empty_indexed || self.size(dim) == 0;
  }
  if constexpr (kPlain<C>) {
    TORCH_CHECK_INDEX(!empty_indexed || c10::multiply_integers(chosen) == 0,
                      "index is out of bounds for dimension with size 0");
  }
  for (const int64_t dim : plan.before) sizes.push_back(size_of<C>(self, dim));
  sizes.append(chosen.begin(), chosen.end());
  for (const int64_t dim : plan.after) sizes.push_back(size_of<C>(self, dim));
  return sizes;
}

/// The strides of what is indexed: those that TensorAdvancedIndexing's AdvancedIndex gets from its iterator.
at::DimVector indexed_strides(const at::Tensor& self, const Indexing& plan, const at::DimVector& sizes) {
  const size_t before = plan.before.size(), after = plan.after.size();
  const at::IntArrayRef chosen = at::IntArrayRef(sizes).slice(before, sizes.size() - before - after);
  at::DimVector source(sizes.size(), 0);  // of self; 0 for the dimensions of the indices
  for (size_t i = 0; i < before; ++i) source[i] = self.stride(plan.before[i]);
  for (size_t i = 0; i < after; ++i) source[sizes.size() - after + i] = self.stride(plan.after[i]);
  c10::SmallVector<Layout, 4> layouts;
  for (const at::Tensor& index : plan.indices) {
    if (!index.defined()) continue;
    // int32 indices are converted: a dense copy.
    const Layout own = index.scalar_type() == c10::ScalarType::Long
                           ? Layout{at::DimVector(index.sizes()), at::DimVector(index.strides())}
                           : like_layout(index);
    const auto expanded = at::inferExpandGeometry_dimvector(own.sizes, own.strides, chosen);
    Layout& layout = layouts.emplace_back();
    layout.sizes.assign(before, 1);
    layout.sizes.insert(layout.sizes.end(), chosen.begin(), chosen.end());
    layout.sizes.insert(layout.sizes.end(), after, 1);
    const auto strides = at::detail::computeStride(expanded.sizes, expanded.strides, layout.sizes);
    layout.strides = strides ? *strides : c10::contiguous_strides(layout.sizes);
  }
  c10::SmallVector<Geometry, 4> operands{Geometry(sizes, source)};
  for (const Layout& layout : layouts) operands.push_back(layout);
  return elementwise_layout(operands).strides;
}

/// `checked_dtypes`: _unsafe_index, which checks its indices first.
template <bool checked_dtypes, class C>
bool index(C& call) {
  const at::Tensor& self = call.tensor(0);
  if (kPlain<C> && class_of(self.scalar_type()) == kNone) return false;
  const std::vector<at::Tensor> indices = call.tensors(1);
  for (const at::Tensor& index : indices) {
    TORCH_CHECK(!checked_dtypes || !index.defined() || is_index_dtype(index.scalar_type()) ||
                    index.scalar_type() == c10::ScalarType::Bool,
                "_unsafe_index found unexpected index type ", index.scalar_type());
  }
  const Indexing plan = plan_indexing(self, indices);
  if (plan.masked || plan.is_empty()) return false;
  return add(call, indexed_sizes<C>(self, plan), self.scalar_type(), self.device(),
             [&](const at::DimVector& sizes) { return indexed_strides(self, plan, sizes); });
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
template <bool inplace, class C>
bool index_put(C& call) {
  const at::Tensor &self = call.tensor(0), &values = call.tensor(2);
  if (kPlain<C> && class_of(self.scalar_type()) == kNone) return false;
  if (kPlain<C> && inplace) {
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
    const auto sizes = indexed_sizes<C>(self, plan), given = sizes_of<C>(values);
    TORCH_CHECK(expands(given, sizes), "shape mismatch: value tensor of shape ", at::ArrayRef<Size<C>>(given),
                " cannot be broadcast to indexing result of shape ", at::ArrayRef<Size<C>>(sizes));
  }
  return inplace ? add_self(call) : add_like(call, self, self.scalar_type(), self.device());
}

// Selections along a dimension.

template <class C>
bool index_select(C& call) {
  const at::Tensor &self = call.tensor(0), &index = call.tensor(2);
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), self.dim());
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(is_index_dtype(index.scalar_type()), "index_select(): Expected dtype int32 or int64 for index");
  const Size<C> count = numel_of<C>(index);
  auto sizes = sizes_of<C>(self);
  if (!sizes.empty()) {
    sizes[dim] = count;
  } else {
    TORCH_CHECK(count == 1, "index_select(): Index to scalar can have only 1 value, got ", count, " value(s)");
  }
  return add(call, sizes, self.scalar_type(), self.device());
}

void check_embedding_indices(const at::Tensor& indices) {
  TORCH_CHECK(
      is_index_dtype(indices.scalar_type()),
      "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got ",
      indices.toString(), " instead (while checking arguments for embedding)");
}

template <class C>
bool embedding(C& call) {
  const at::Tensor &weight = call.tensor(0), &indices = call.tensor(1);
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  check_embedding_indices(indices);
  auto sizes = sizes_of<C>(indices);
  sizes.push_back(size_of<C>(weight, 1));
  return add(call, sizes, weight.scalar_type(), weight.device());
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

/// The same of sizes alone, for all arguments. Which results have no elements, or one for the end of the last bag, goes
/// by the kernel that is chosen.
bool embedding_bag_sizes(SymbolicCall& call) {
  const c10::SymInt offsets = call.tensor(2).sym_size(0), width = call.tensor(0).sym_size(1);
  const c10::SymInt bags = call.boolean(7) ? offsets - 1 : offsets;
  const auto is_one_of = [&](size_t k, std::initializer_list<SymSizes> candidates) {
    return std::any_of(candidates.begin(), candidates.end(),
                       [&](const SymSizes& sizes) { return call.dense(k, sizes); });
  };
  return is_one_of(0, {{bags, width}}) && is_one_of(1, {{0}, {call.tensor(1).sym_size(0)}}) &&
         is_one_of(2, {{bags}, {offsets}}) && is_one_of(3, {{bags, width}, {bags}, {offsets}, {0}});
}

/// embedding_dense_backward(grad, indices, num_weights, ...).
template <class C>
bool embedding_dense_backward(C& call) {
  const at::Tensor& grad = call.tensor(0);
  check_embedding_indices(call.tensor(1));
  return add(call, {size_argument(call, 2), size_of<C>(grad, -1)}, grad.scalar_type(), grad.device());
}

template <class C>
bool take(C& call) {
  const at::Tensor &self = call.tensor(0), &index = call.tensor(1);
  TORCH_CHECK(index.scalar_type() == c10::ScalarType::Long, "take(): Expected a long tensor for index, but got ",
              index.scalar_type());
  if (kPlain<C> && (self.numel() == 0 || !index.is_contiguous())) return false;
  return add(call, sizes_of<C>(index), self.scalar_type(), self.device());
}

template <bool in_place = false, class C>
bool masked_scatter(C& call) {
  const at::Tensor &self = call.tensor(0), &mask = call.tensor(1), &source = call.tensor(2);
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes but got ", self.scalar_type(), " and ",
              source.scalar_type());
  if (mask.scalar_type() != c10::ScalarType::Bool) return false;
  if (in_place) {
    check_no_internal_overlap(self);
    return expands(sizes_of<C>(mask), sizes_of<C>(self)) && add_self(call);
  }
  return add(call, broadcast(sizes_of<C>(mask), sizes_of<C>(self)), self.scalar_type(), self.device());
}

// Concatenations and copies.

/// True if no tensor, seen as an image or a volume, could lead eager to a channels-last result.
bool all_contiguous(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_contiguous(); });
}

/// `rule` where all tensors of a list have dtypes that rules know.
template <Rule rule>
bool usual(Call& call) {
  for (const at::Tensor& tensor : call.tensors(0)) {
    if (class_of(tensor.scalar_type()) == kNone) return false;
  }
  return rule(call);
}

/// The items of a batch, which lie one behind the other in `values`, each filled up to the length of the longest.
template <class C>
bool padded_of_jagged(C& call) {
  const at::Tensor& values = call.tensor(0);
  const std::vector<at::Tensor> offsets = call.tensors(1);
  const Sizes<C> longest = sizes_argument(call, 2);
  if (offsets.size() != 1 || offsets[0].dim() != 1 || longest.size() != 1 || values.dim() == 0) return false;
  Sizes<C> sizes = sizes_of<C>(values);
  sizes[0] = longest[0];
  sizes.insert(sizes.begin(), size_of<C>(offsets[0], 0) - 1);
  return add(call, sizes, values.scalar_type(), values.device());
}

/// The way back. How long the items are together depends on the data, unless it is given.
template <class C>
bool jagged_of_padded(C& call) {
  const at::Tensor& padded = call.tensor(0);
  const std::vector<at::Tensor> offsets = call.tensors(1);
  if (call.is_none(2) || offsets.size() != 1 || offsets[0].dim() != 1 || padded.dim() < 2) return false;
  Sizes<C> sizes = sizes_of<C>(padded);
  sizes.erase(sizes.begin());
  sizes[0] = size_argument(call, 2);
  return add(call, sizes, padded.scalar_type(), padded.device());
}

template <class C>
bool stack(C& call) {
  const std::vector<at::Tensor> tensors = call.tensors(0);
  TORCH_CHECK(!tensors.empty(), "stack expects a non-empty TensorList");
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), tensors[0].dim() + 1);
  auto sizes = sizes_of<C>(tensors[0]);
  for (size_t i = 1; i < tensors.size(); ++i) {
    const auto other = sizes_of<C>(tensors[i]);
    using List = at::ArrayRef<Size<C>>;
    TORCH_CHECK(are_equal(sizes, other), "stack expects each tensor to be equal size, but got ", List(sizes),
                " at entry 0 and ", List(other), " at entry ", i);
  }
  sizes.insert(sizes.begin() + dim, static_cast<int64_t>(tensors.size()));
  c10::ScalarType dtype = tensors[0].scalar_type();
  c10::Device device = tensors[0].device();
  if constexpr (kPlain<C>) {
    Operands operands;
    for (const at::Tensor& tensor : tensors) operands.add(tensor);
    dtype = operands.promoted();
    device = operands.device();
    const bool image = tensors[0].dim() == 3 || tensors[0].dim() == 4;
    if (class_of(dtype) == kNone || (image && !all_contiguous(tensors))) return false;
  }
  return add(call, sizes, dtype, device);
}

template <class C>
bool repeat(C& call) {
  const at::Tensor& self = call.tensor(0);
  const auto repeats = sizes_argument(call, 1);
  TORCH_CHECK(static_cast<int64_t>(repeats.size()) >= self.dim(),
              "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
  auto sizes = repeats;
  const size_t padding = repeats.size() - self.dim();
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK(repeats[i] >= 0, "Repeats must be non-negative, got ", repeats[i], " at index ", i);
    if (i >= padding) sizes[i] *= size_of<C>(self, static_cast<int64_t>(i - padding));
  }
  return add(call, sizes, self.scalar_type(), self.device());
}

template <class C>
bool flip(C& call) {
  const at::Tensor& self = call.tensor(0);
  std::vector<bool> seen(std::max<int64_t>(self.dim(), 1));
  for (int64_t dim : dims_argument(call, 1)) {
    dim = at::maybe_wrap_dim(dim, self.dim());
    TORCH_CHECK(!seen[dim], "dim ", dim, " appears multiple times in the list of dims");
    seen[dim] = true;
  }
  if (kPlain<C> && class_of(self.scalar_type()) == kNone) return false;
  return add_like(call, self, self.scalar_type(), self.device());
}

template <class C>
bool roll(C& call) {
  const at::Tensor& self = call.tensor(0);
  const auto shifts = sizes_argument(call, 1);
  const std::vector<int64_t> dims = dims_argument(call, 2);
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  TORCH_CHECK((dims.empty() && shifts.size() == 1) || shifts.size() == dims.size(),
              "shifts and dimensions must align. shifts: ", shifts.size(), ", dims:", dims.size());
  if (kPlain<C> && self.numel() == 0) {
    return add_like(call, self, self.scalar_type(), self.device(),
                    dims.empty() ? at::MemoryFormat::Contiguous : at::MemoryFormat::Preserve);
  }
  if (kPlain<C> && (!self.is_contiguous() || self.suggest_memory_format() != at::MemoryFormat::Contiguous)) {
    return false;
  }
  for (int64_t dim : dims) {
    TORCH_CHECK_INDEX(self.dim() > 0, "Dimension specified as ", dim, " but tensor has no dimensions");
    at::maybe_wrap_dim(dim, self.dim());
  }
  return add(call, sizes_of<C>(self), self.scalar_type(), self.device());
}

// Padding.

template <class C>
bool constant_pad_nd(C& call) {
  const at::Tensor& self = call.tensor(0);
  const auto pad = sizes_argument(call, 1);
  const auto padded = static_cast<int64_t>(pad.size() / 2);
  TORCH_CHECK(pad.size() % 2 == 0, "Length of pad must be even but instead it equals ", pad.size());
  TORCH_CHECK(self.dim() >= padded,
              "Length of pad should be no more than twice the number of dimensions of the input. ", "Pad length is ",
              pad.size(), " while the input has ", self.dim(), " dimensions.");
  auto sizes = sizes_of<C>(self);
  // Of a contiguous tensor the result has the same strides either way.
  const FakeImpl* fake = as_fake(self);
  bool grows = !kPlain<C> && (fake && fake->symbolic() ? fake->has_contiguous_strides() : self.is_contiguous());
  for (int64_t i = 0; i < padded; ++i) {
    Size<C>& size = sizes[self.dim() - 1 - i];
    const Size<C>&low = pad[2 * i], &high = pad[2 * i + 1];
    grows = grows || low > 0 || high > 0;
    TORCH_CHECK(size + low + high >= 0, "The input size ", size, ", plus negative padding ", low, " and ", high,
                " resulted in a negative output size, which is invalid.");
    size = size + low + high;
  }
  return add(call, sizes, self.scalar_type(), self.device(), [&](const at::DimVector& now) {
    return grows ? strides_in_format(now, self.suggest_memory_format())
                 : like_layout(Geometry(now, self.strides())).strides;  // a copy of the narrowed input
  });
}

/// `rule` for images that are not channels-last, which replication_pad2d's meta function doesn't know.
template <Rule rule>
bool unless_channels_last(Call& call) {
  return call.tensor(0).suggest_memory_format() == at::MemoryFormat::Contiguous && rule(call);
}

/// reflection_pad2d of contiguous images.
template <class C>
bool reflection_pad2d(C& call) {
  const at::Tensor& self = call.tensor(0);
  const auto pad = sizes_argument(call, 1);
  if ((self.dim() != 3 && self.dim() != 4) || pad.size() != 4) return false;
  if (kPlain<C> &&
      (!self.is_contiguous() || self.suggest_memory_format() != at::MemoryFormat::Contiguous || self.numel() == 0)) {
    return false;
  }
  auto sizes = sizes_of<C>(self);
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t dim = self.dim() - 1 - i;
    const Size<C>&low = pad[2 * i], &high = pad[2 * i + 1];
    TORCH_CHECK(!kPlain<C> || (low < sizes[dim] && high < sizes[dim]),
                "Argument #4: Padding size should be less than the corresponding input dimension, but got: padding (",
                low, ", ", high, ") at dimension ", dim, " of input ", self.sym_sizes());
    sizes[dim] = sizes[dim] + low + high;
    if (sizes[dim] < 1) return false;
  }
  return add(call, sizes, self.scalar_type(), self.device());
}

// Searches and draws.

/// bucketize(self, boundaries, out_int32, right), searchsorted(sorted, self, out_int32, ...).
template <size_t values, size_t out_int32, class C>
bool search(C& call) {
  const at::Tensor &self = call.tensor(values), &boundaries = call.tensor(1 - values);
  if constexpr (kPlain<C>) {
    if (!self.is_contiguous() || boundaries.dim() != 1 || self.scalar_type() != boundaries.scalar_type()) return false;
    if (call.size() > 4 && (!call.is_none(4) || !call.is_none(5))) return false;
  }
  return add(call, sizes_of<C>(self), call.boolean(out_int32) ? c10::ScalarType::Int : c10::ScalarType::Long,
             self.device());
}

template <class C>
bool multinomial(C& call) {
  const at::Tensor& self = call.tensor(0);
  const Size<C> count = size_argument(call, 1);
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2, "prob_dist must be 1 or 2 dim");
  if constexpr (kPlain<C>) {
    TORCH_CHECK(class_of(self.scalar_type()) & kFloats,
                "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
    TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
    TORCH_CHECK(call.boolean(2) || count <= self.size(-1),
                "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  }
  auto sizes = sizes_of<C>(self);
  sizes.back() = count;
  return add(call, sizes, c10::ScalarType::Long, self.device());
}

template <class C>
bool histc(C& call) {
  const at::Tensor& self = call.tensor(0);
  const Size<C> bins = size_argument(call, 1);
  if (kPlain<C> && (bins <= 0 || self.numel() == 0)) return false;
  return add(call, {bins}, self.scalar_type(), self.device());
}

}  // namespace

std::span<const RuleRow> indexing_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_indexing(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_indexing_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_indexing(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
