// Views: new sizes, strides and offset over the same storage. Each rule is written once, for plain numbers and for
// sizes that differ from run to run: a template over the call, which is a Call or a SymbolicCall. What it finds wrong
// has eager's words; of a SymbolicCall that is declined, and what the rule asks of its sizes is assumed.
#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/native/Resize.h>

#include "fake/fake_impl.h"
#include "fake/shape_rules.h"

namespace magneto::fake {
namespace {

using c10::SymInt;

bool is_last(int64_t value) { return value == INT64_MAX; }
bool is_last(const SymInt& value) { return !value.is_heap_allocated() && value.as_int_unchecked() == INT64_MAX; }

/// Of sizes that only data says: false where it does not show.
bool are_same(int64_t a, int64_t b) { return a == b; }
bool are_same(const SymInt& a, const SymInt& b) { return TORCH_GUARD_OR_FALSE(a.sym_eq(b)); }

int64_t clamped(const Call&, int64_t value, int64_t low, int64_t high) { return std::clamp(value, low, high); }
SymInt clamped(const SymbolicCall& call, const SymInt& value, const SymInt& low, const SymInt& high) {
  if (call.is_unbacked(value)) return value.max(low).min(high.max(low));
  if (value < low) return low;
  return value > high ? high : value;
}

/// The geometry that a view operator computes, from its base's.
template <class C>
struct View {
  Sizes<C> sizes, strides;
  Size<C> offset;
  /// Read as another one.
  std::optional<c10::ScalarType> dtype;

  explicit View(const at::Tensor& base) {
    if constexpr (kPlain<C>) {
      sizes = at::DimVector(base.sizes());
      strides = at::DimVector(base.strides());
      offset = base.storage_offset();
    } else {
      sizes = SymSizes(base.sym_sizes().begin(), base.sym_sizes().end());
      strides = SymSizes(base.sym_strides().begin(), base.sym_strides().end());
      offset = base.sym_storage_offset();
    }
  }

  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
  int64_t wrap(int64_t dim) const { return at::maybe_wrap_dim(dim, rank()); }
  void erase(int64_t dim) {
    sizes.erase(sizes.begin() + dim);
    strides.erase(strides.begin() + dim);
  }
  void insert(int64_t dim, Size<C> size, Size<C> stride) {
    sizes.insert(sizes.begin() + dim, std::move(size));
    strides.insert(strides.begin() + dim, std::move(stride));
  }
  void swap(int64_t dim0, int64_t dim1) {
    std::swap(sizes[dim0], sizes[dim1]);
    std::swap(strides[dim0], strides[dim1]);
  }
  /// [start, start + length) with steps.
  void narrow(int64_t dim, const Size<C>& start, const Size<C>& length, int64_t step = 1) {
    offset += start * strides[dim];
    sizes[dim] = step == 1 ? length : (length + (step - 1)) / step;
    strides[dim] *= step;
  }
};

at::Tensor made(const Call& call, const View<Call>& view) {
  const at::Tensor& self = call.tensor(0);
  return call.view(self, view.sizes, view.strides, view.offset, view.dtype.value_or(self.scalar_type()));
}

/// Computes the geometry of a view of argument 0. False: declined.
template <class C>
using Compute = bool (*)(const C& call, View<C>& view);

template <Compute<Call> compute>
bool view_of(Call& call) {
  View<Call> view(call.tensor(0));
  if (!compute(call, view)) return false;
  call.result(made(call, view));
  return true;
}

template <Compute<SymbolicCall> compute>
bool view_of(SymbolicCall& call) {
  View<SymbolicCall> view(call.tensor(0));
  return compute(call, view) && call.view(0, view.sizes, view.strides, view.offset);
}

/// unsqueeze_, t_, ...: argument 0 itself changes its geometry.
template <Compute<Call> compute>
bool reshape_inplace(Call& call) {
  const at::Tensor& self = call.tensor(0);
  View<Call> view(self);
  if (!compute(call, view)) return false;
  call.restride(self, view.sizes, view.strides, view.offset);
  call.result(self);
  return true;
}

template <Compute<SymbolicCall> compute>
bool reshape_inplace(SymbolicCall& call) {
  return view_of<compute>(call);
}

template <class C>
bool same(const C&, View<C>&) {
  return true;
}

template <class C>
bool reshaped(const C& call, View<C>& view) {
  const at::Tensor& self = call.tensor(0);
  const auto asked = sizes_argument(call, 1);
  Sizes<C> sizes;
  if constexpr (kPlain<C>) {
    sizes = at::infer_size_dv(asked, self.numel());
  } else {
    sizes = at::infer_size_dv(asked, self.sym_numel());
  }
  using List = at::ArrayRef<Size<C>>;
  std::optional<Sizes<C>> strides;
  if constexpr (kPlain<C>) {
    strides = at::detail::computeStride(List(view.sizes), List(view.strides), sizes);
  } else {
    const FakeImpl* fake = as_fake(self);
    auto& purpose = fake->state().purpose;
    const size_t asked = purpose.unasked.size();
    if (purpose.exports && fake->symbolic() && fake->has_contiguous_strides()) {
      strides = contiguous_strides(fake->state(), sizes);
    } else {
      strides = at::detail::computeStride(List(view.sizes), List(view.strides), sizes);
    }
    if (strides) purpose.unasked.resize(asked);  // it is a view with sizes of 1 as well
  }
  TORCH_CHECK(
      strides.has_value(),
      "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
      "contiguous subspaces). Use .reshape(...) instead.");
  view.sizes = std::move(sizes);
  view.strides = std::move(*strides);
  return true;
}

/// (self, sizes, strides).
template <class C>
bool reshape_alias(const C& call, View<C>& view) {
  view.sizes = sizes_argument(call, 1);
  view.strides = sizes_argument(call, 2);
  return true;
}

template <class C>
bool expand(const C& call, View<C>& view) {
  const auto asked = sizes_argument(call, 1);
  using List = at::ArrayRef<Size<C>>;
  TORCH_CHECK(asked.size() >= view.sizes.size(), "expand(", call.tensor(0).toString(), "{", List(view.sizes),
              "}, size=", List(asked), "): the number of sizes provided (", asked.size(),
              ") must be greater or equal to the number of dimensions in the tensor (", view.sizes.size(), ")");
  const size_t added = asked.size() - view.sizes.size();
  Sizes<C> sizes = asked, strides(asked.size(), Size<C>(0));
  for (size_t i = view.sizes.empty() ? 0 : asked.size(); i-- > 0;) {  // strides of what was no dimension are 0
    const bool has = i >= added;
    const Size<C> size = has ? view.sizes[i - added] : Size<C>(1);
    if (asked[i] == -1 || are_same(asked[i], size)) {
      TORCH_CHECK(has || asked[i] != -1, "The expanded size of the tensor (", asked[i],
                  ") isn't allowed in a leading, non-existing dimension ", i);
      sizes[i] = size;
      // A new dimension of size one stands as if it held the others.
      strides[i] = has ? view.strides[i - added] : sizes[i + 1] * strides[i + 1];
    } else {
      TORCH_CHECK(!(size != 1), "The expanded size of the tensor (", asked[i], ") must match the existing size (", size,
                  ") at non-singleton dimension ", i, ".  Target sizes: ", List(asked),
                  ".  Tensor sizes: ", List(view.sizes));
    }
  }
  view.sizes = std::move(sizes);
  view.strides = std::move(strides);
  return true;
}

template <class C>
bool permute(const C& call, View<C>& view) {
  const View<C> base = view;
  const std::vector<int64_t> dims = dims_argument(call, 1);
  TORCH_CHECK(static_cast<int64_t>(dims.size()) == base.rank(),
              "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
              "ordering of dimensions i.e. input.dim() = ",
              base.rank(), " is not equal to len(dims) = ", dims.size());
  std::vector<bool> seen(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = base.wrap(dims[i]);
    TORCH_CHECK(!seen[dim], "permute(): duplicate dims are not allowed.");
    seen[dim] = true;
    view.sizes[i] = base.sizes[dim];
    view.strides[i] = base.strides[dim];
  }
  return true;
}

template <class C>
bool transpose(const C& call, View<C>& view) {
  const int64_t dim0 = view.wrap(call.integer(1)), dim1 = view.wrap(call.integer(2));
  if (dim0 != dim1) view.swap(dim0, dim1);
  return true;
}

template <class C>
bool t(const C&, View<C>& view) {
  TORCH_CHECK(view.rank() <= 2, "t() expects a tensor with <= 2 dimensions, but self is ", view.rank(), "D");
  if (view.rank() == 2) view.swap(0, 1);
  return true;
}

template <class C>
bool squeeze(const C&, View<C>& view) {
  for (int64_t dim = view.rank(); dim-- > 0;) {
    if (view.sizes[dim] == 1) view.erase(dim);
  }
  return true;
}

template <class C>
bool squeeze_dim(const C& call, View<C>& view) {
  const int64_t dim = view.wrap(call.integer(1));
  if (view.rank() > 0 && view.sizes[dim] == 1) view.erase(dim);
  return true;
}

template <class C>
bool squeeze_dims(const C& call, View<C>& view) {
  const int64_t rank = view.rank();
  const std::vector<int64_t> dims = dims_argument(call, 1);
  const auto mask = at::dim_list_to_bitset(dims, rank);
  for (int64_t dim = rank; dim-- > 0;) {
    if (mask[dim] && view.sizes[dim] == 1) view.erase(dim);
  }
  return true;
}

template <class C>
bool unsqueeze(const C& call, View<C>& view) {
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), view.rank() + 1);
  view.insert(dim, 1, dim == view.rank() ? Size<C>(1) : view.sizes[dim] * view.strides[dim]);
  return true;
}

template <class C>
bool select(const C& call, View<C>& view) {
  TORCH_CHECK_INDEX(view.rank() > 0, "select() cannot be applied to a 0-dim tensor.");
  const int64_t dim = view.wrap(call.integer(1));
  const Size<C> index = size_argument(call, 2), size = view.sizes[dim];
  TORCH_CHECK_INDEX(!(index >= size || index < -size), "select(): index ", index, " out of range for tensor of size ",
                    at::ArrayRef<Size<C>>(view.sizes), " at dimension ", dim);
  view.offset += (index < 0 ? index + size : index) * view.strides[dim];
  view.erase(dim);
  return true;
}

/// magneto::select(Tensor(a) self, int dim, Tensor index) -> Tensor(a): where the view begins, only the run knows.
bool select_unknown(Call& call) {
  View<Call> view(call.tensor(0));
  view.erase(call.integer(1));
  as_fake(call.tensor(0))->note_unplaced();
  call.result(made(call, view));
  return true;
}

/// magneto::view_as(Tensor(a) self, int[] size, int[] stride, int offset) -> Tensor(a)
bool view_as(const Call& call, View<Call>& view) {
  view.offset += call.integer(3);
  return reshape_alias(call, view);
}

template <class C>
bool slice(const C& call, View<C>& view) {
  TORCH_CHECK_INDEX(view.rank() > 0, "slice() cannot be applied to a 0-dim tensor.");
  const int64_t dim = view.wrap(call.integer(1)), step = call.integer(4);
  const Size<C> size = view.sizes[dim];
  TORCH_CHECK(step > 0, "slice step must be positive");
  const auto bound = [&](size_t i, const Size<C>& otherwise) -> Size<C> {
    if (call.is_none(i)) return otherwise;
    const Size<C> given = size_argument(call, i);
    if (is_last(given)) return Size<C>(size);
    return given < 0 ? given + size : given;
  };
  const Size<C> start = clamped(call, bound(2, 0), 0, size);
  const Size<C> end = clamped(call, bound(3, size), start, size);
  view.narrow(dim, start, end - start, step);
  return true;
}

/// Within the storage, as eager checks.
bool is_in_place(const Call& call, const View<Call>&, const View<Call>& view) {
  const at::Tensor& self = call.tensor(0);
  TORCH_CHECK(view.sizes.size() == view.strides.size(), "mismatch in length of strides and shape");
  for (const int64_t stride : view.strides) {
    TORCH_CHECK(stride >= 0, "as_strided: Negative strides are not supported at the moment, got strides: ",
                at::IntArrayRef(view.strides));
  }
  TORCH_CHECK(view.offset >= 0, "Tensor: invalid storage offset ", view.offset);
  at::native::checkInBoundsForStorage(at::IntArrayRef(view.sizes), at::IntArrayRef(view.strides), view.offset,
                                      self.dtype(), self.storage());
  return true;
}

/// What lies between the first and the last element, both included; no size is 0, no stride is negative.
std::optional<SymInt> extent(const View<SymbolicCall>& view) {
  SymInt last = 1;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] < 1 || view.strides[i] < 0) return std::nullopt;
    last = last + (view.sizes[i] - 1) * view.strides[i];
  }
  return last;
}

/// Within what the tensor itself covers of its memory: how large that is in other runs, nothing says.
bool is_in_place(const SymbolicCall&, const View<SymbolicCall>& base, const View<SymbolicCall>& view) {
  const auto covered = extent(base), asked = extent(view);
  return covered && asked && view.offset >= base.offset && view.offset + *asked <= base.offset + *covered;
}

/// (self, sizes, strides, offset).
template <class C>
bool as_strided(const C& call, View<C>& view) {
  const View<C> base = view;
  (void)reshape_alias(call, view);
  if (!call.is_none(3)) view.offset = size_argument(call, 3);
  return is_in_place(call, base, view);
}

/// The same of the tensor itself, which may leave what it covers of its memory.
template <class C>
bool restrided(const C& call, View<C>& view) {
  if constexpr (kPlain<C>) return as_strided(call, view);
  return call.is_none(3) && reshape_alias(call, view);
}

template <class C>
bool diagonal(const C& call, View<C>& view) {
  const int64_t offset = call.integer(1), dim1 = view.wrap(call.integer(2)), dim2 = view.wrap(call.integer(3));
  TORCH_CHECK(dim1 != dim2, "diagonal dimensions cannot be identical ", dim1, ", ", dim2);
  const Size<C> rows = view.sizes[dim1], columns = view.sizes[dim2];
  const Size<C> stride = view.strides[dim1] + view.strides[dim2];
  Size<C> length = offset >= 0 ? smaller(rows, columns - offset) : smaller(rows + offset, columns);
  if (length < 1) {
    if (!kPlain<C>) return false;
    length = 0;
  } else {
    view.offset += view.strides[offset >= 0 ? dim2 : dim1] * std::abs(offset);
  }
  view.erase(std::max(dim1, dim2));
  view.erase(std::min(dim1, dim2));
  view.insert(view.rank(), length, stride);
  return true;
}

template <class C>
bool unfold(const C& call, View<C>& view) {
  const int64_t dim = view.wrap(call.integer(1)), size = call.integer(2), step = call.integer(3);
  const bool number = view.sizes.empty();
  const Size<C> extent = number ? Size<C>(1) : view.sizes[dim], stride = number ? Size<C>(1) : view.strides[dim];
  TORCH_CHECK(size >= 0, "size is ", size, " but must be >= 0");
  TORCH_CHECK(!(extent < size), "maximum size for tensor at dimension ", dim, " is ", extent, " but size is ", size);
  TORCH_CHECK(step > 0, "step is ", step, " but must be > 0");
  if (!number) {
    view.sizes[dim] = (extent - size) / step + 1;
    view.strides[dim] = stride * step;
  }
  view.insert(view.rank(), size, stride);
  return true;
}

// Views with several results.

bool give(Call& call, const std::vector<View<Call>>& views) {
  std::vector<at::Tensor> parts;
  for (const View<Call>& view : views) parts.push_back(made(call, view));
  call.result(std::move(parts));
  return true;
}

bool give(SymbolicCall& call, const std::vector<View<SymbolicCall>>& views) {
  if (views.size() != call.result_count()) return false;
  for (size_t i = 0; i < views.size(); ++i) {
    if (!call.view(i, views[i].sizes, views[i].strides, views[i].offset)) return false;
  }
  return true;
}

template <class C>
bool give_slices(C& call, int64_t dim, const Sizes<C>& lengths) {
  std::vector<View<C>> parts;
  Size<C> start = 0;
  for (const Size<C>& length : lengths) {
    parts.emplace_back(call.tensor(0)).narrow(dim, start, length);
    start += length;
  }
  return give(call, parts);
}

/// How many pieces of that length there are.
int64_t count_pieces(const Call&, int64_t length, int64_t size) {
  return length == 0 ? 1 : std::max<int64_t>((size + length - 1) / length, 1);
}

/// As many as in this run, the last of them not empty.
int64_t count_pieces(const SymbolicCall& call, const SymInt& length, const SymInt& size) {
  const auto count = static_cast<int64_t>(call.result_count());
  if (call.is_unbacked(size) && !call.is_unbacked(length))
    (void)((size + length - 1) / length).guard_int(__FILE__, __LINE__);
  return length * (count - 1) < size && size <= length * count ? count : 0;
}

template <class C>
bool split(C& call) {
  const View<C> self(call.tensor(0));
  const Size<C> length = size_argument(call, 1);
  TORCH_CHECK(self.rank() != 0, "split expects at least a 1-dimensional tensor");
  if constexpr (kPlain<C>) {
    TORCH_CHECK(length >= 0, "split expects split_size be non-negative, but got split_size=", length);
  }
  const int64_t dim = self.wrap(call.integer(2));
  const Size<C> size = self.sizes[dim];
  if constexpr (kPlain<C>) {
    TORCH_CHECK(length > 0 || size == 0, "split_size can only be 0 if dimension size is 0, but got dimension size of ",
                size);
  }
  const int64_t count = count_pieces(call, length, size);
  if (count == 0) return false;
  Sizes<C> lengths(count, length);
  lengths.back() = size - length * (count - 1);
  return give_slices(call, dim, lengths);
}

template <class C>
bool split_with_sizes(C& call) {
  const View<C> self(call.tensor(0));
  const auto lengths = sizes_argument(call, 1);
  using List = at::ArrayRef<Size<C>>;
  TORCH_CHECK(self.rank() != 0, "split expects at least a 1-dimensional tensor");
  const int64_t dim = self.wrap(call.integer(2));
  Size<C> total = 0;
  for (const Size<C>& length : lengths) {
    TORCH_CHECK(
        !(length < 0),
        "split_with_sizes expects split_sizes have only non-negative entries, but got split_sizes=", List(lengths));
    total += length;
  }
  TORCH_CHECK(total == self.sizes[dim], "split_with_sizes expects split_sizes to sum exactly to ", self.sizes[dim],
              " (input tensor's size at dimension ", dim, "), but got split_sizes=", List(lengths));
  return give_slices(call, dim, lengths);
}

/// As many results as the size says: where that is no constant, declined.
template <class C>
bool unbind(C& call) {
  const View<C> self(call.tensor(0));
  const int64_t dim = self.wrap(call.integer(1));
  TORCH_CHECK_INDEX(self.rank() > 0, "Dimension specified as ", call.integer(1), " but tensor has no dimensions");
  int64_t count = 0;
  if constexpr (kPlain<C>) {
    count = self.sizes[dim];
  } else {
    count = static_cast<int64_t>(call.result_count());
    if (call.is_unbacked(self.sizes[dim])) (void)self.sizes[dim].guard_int(__FILE__, __LINE__);
    if (self.sizes[dim] != count) return false;
  }
  std::vector<View<C>> parts(count, self);
  for (int64_t i = 0; i < count; ++i) {
    parts[i].offset += self.strides[dim] * i;
    parts[i].erase(dim);
  }
  return give(call, parts);
}

// Views that read another dtype. The rules for plain numbers leave rare ones to PyTorch.

/// Two numbers where one was.
template <class C>
bool as_real(const C& call, View<C>& view) {
  const at::Tensor& self = call.tensor(0);
  TORCH_CHECK(self.is_complex(), "view_as_real is only supported for complex tensors");
  if (kPlain<C> && (self.is_conj() || class_of(self.scalar_type()) == kNone)) return false;
  for (Size<C>& stride : view.strides) stride *= 2;
  view.insert(view.rank(), 2, 1);
  view.offset *= 2;
  view.dtype = c10::toRealValueType(self.scalar_type());
  return true;
}

template <class C>
bool as_complex(const C& call, View<C>& view) {
  const at::Tensor& self = call.tensor(0);
  if (kPlain<C> && !(class_of(self.scalar_type()) & kSingles)) return false;
  TORCH_CHECK(view.rank() > 0, "Input tensor must have one or more dimensions");
  TORCH_CHECK(!(view.sizes.back() != 2), "Tensor must have a last dimension of size 2");
  TORCH_CHECK(!(view.strides.back() != 1), "Tensor must have a last dimension with stride 1");
  view.erase(view.rank() - 1);
  for (Size<C>& stride : view.strides) {
    TORCH_CHECK(!(stride % 2 != 0), "Tensor must have a stride divisible by 2 for all but last dimension");
    stride = stride / 2;
  }
  TORCH_CHECK(!(view.offset % 2 != 0), "Tensor must have a storage_offset divisible by 2");
  view.offset = view.offset / 2;
  view.dtype = c10::toComplexType(self.scalar_type());
  return true;
}

/// In units that are `ratio` times as large; the last dimension stands close.
template <class C>
bool in_larger_units(View<C>& view, int64_t ratio) {
  for (Size<C>& stride : view.strides) {
    if (&stride != &view.strides.back() && stride % ratio != 0) return false;
    if (&stride != &view.strides.back()) stride = stride / ratio;
  }
  if (view.strides.back() != 1 || view.sizes.back() % ratio != 0 || view.offset % ratio != 0) return false;
  view.sizes.back() = view.sizes.back() / ratio;
  view.offset = view.offset / ratio;
  return true;
}

template <class C>
bool of_dtype(const C& call, View<C>& view) {
  const at::Tensor& self = call.tensor(0);
  const c10::ScalarType dtype = call.arg(1).toScalarType();
  const auto from = static_cast<int64_t>(self.itemsize()), to = static_cast<int64_t>(c10::elementSize(dtype));
  if (kPlain<C> && (from != to || class_of(dtype) == kNone || class_of(self.scalar_type()) == kNone || self.is_conj() ||
                    self.is_neg())) {
    return false;
  }
  view.dtype = dtype;
  if (from == to) return true;
  if (view.sizes.empty()) return false;
  if (from < to) return in_larger_units(view, to / from);
  if (view.strides.back() != 1) return false;
  for (Size<C>& stride : view.strides) stride = stride * (from / to);
  view.strides.back() = 1;
  view.sizes.back() = view.sizes.back() * (from / to);
  view.offset = view.offset * (from / to);
  return true;
}

}  // namespace

std::span<const RuleRow> view_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_view(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_view_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_view(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
