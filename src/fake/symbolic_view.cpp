// Symbolic rules of views (rules_view.cpp has the rules for plain numbers, which check).
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>

#include "fake/symbolic.h"

namespace magneto::fake {
namespace {

using c10::SymInt;

struct View {
  SymSizes sizes, strides;
  SymInt offset;

  explicit View(const at::Tensor& base)
      : sizes(base.sym_sizes().begin(), base.sym_sizes().end()),
        strides(base.sym_strides().begin(), base.sym_strides().end()),
        offset(base.sym_storage_offset()) {}

  int64_t wrap(int64_t dim, int64_t more = 0) const {
    return at::maybe_wrap_dim(dim, static_cast<int64_t>(sizes.size()) + more);
  }
  void erase(int64_t dim) {
    sizes.erase(sizes.begin() + dim);
    strides.erase(strides.begin() + dim);
  }
  void insert(int64_t dim, SymInt size, SymInt stride) {
    sizes.insert(sizes.begin() + dim, std::move(size));
    strides.insert(strides.begin() + dim, std::move(stride));
  }
  void swap(int64_t dim0, int64_t dim1) {
    std::swap(sizes[dim0], sizes[dim1]);
    std::swap(strides[dim0], strides[dim1]);
  }
  void narrow(int64_t dim, const SymInt& start, const SymInt& length, int64_t step = 1) {
    offset += start * strides[dim];
    sizes[dim] = step == 1 ? length : (length + (step - 1)) / step;
    strides[dim] *= step;
  }
};

using Compute = bool (*)(const SymbolicCall& call, View& view);

template <Compute compute>
bool view_of(SymbolicCall& call) {
  View view(call.tensor(0));
  return compute(call, view) && call.view(0, view.sizes, view.strides, view.offset);
}

bool same(const SymbolicCall&, View&) { return true; }

/// (self, sizes, strides).
bool realiased(const SymbolicCall& call, View& view) {
  view.sizes = call.symints(1);
  view.strides = call.symints(2);
  return true;
}

/// (self, sizes, strides, offset): of the tensor itself.
bool restrided(const SymbolicCall& call, View& view) { return call.is_none(3) && realiased(call, view); }

/// What lies between the first and the last element, both included; no size is 0, no stride is negative.
std::optional<SymInt> extent(const SymSizes& sizes, const SymSizes& strides) {
  SymInt last = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 1 || strides[i] < 0) return std::nullopt;
    last = last + (sizes[i] - 1) * strides[i];
  }
  return last;
}

/// (self, sizes, strides, offset): of what the tensor itself covers of its memory.
bool as_strided(const SymbolicCall& call, View& view) {
  const auto covered = extent(view.sizes, view.strides);
  const SymInt start = view.offset;
  (void)realiased(call, view);
  if (!call.is_none(3)) view.offset = call.symint(3);
  const auto asked = extent(view.sizes, view.strides);
  return covered && asked && view.offset >= start && view.offset + *asked <= start + *covered;
}

/// Two numbers where one was.
bool as_real(const SymbolicCall&, View& view) {
  for (SymInt& stride : view.strides) stride = stride * 2;
  view.insert(static_cast<int64_t>(view.sizes.size()), 2, 1);
  view.offset = view.offset * 2;
  return true;
}

/// In units that are `ratio` times as large; the last dimension stands close.
bool in_larger_units(View& view, int64_t ratio) {
  for (SymInt& stride : view.strides) {
    if (&stride != &view.strides.back() && stride % ratio != 0) return false;
    if (&stride != &view.strides.back()) stride = stride / ratio;
  }
  if (view.strides.back() != 1 || view.sizes.back() % ratio != 0 || view.offset % ratio != 0) return false;
  view.sizes.back() = view.sizes.back() / ratio;
  view.offset = view.offset / ratio;
  return true;
}

bool as_complex(const SymbolicCall&, View& view) {
  if (view.sizes.empty() || view.sizes.back() != 2 || !in_larger_units(view, 2)) return false;
  view.erase(static_cast<int64_t>(view.sizes.size()) - 1);
  return true;
}

/// Read as another dtype.
bool of_dtype(SymbolicCall& call) {
  View view(call.tensor(0));
  const auto from = static_cast<int64_t>(call.tensor(0).itemsize()),
             to = static_cast<int64_t>(call.result(0).itemsize());
  if (from != to && view.sizes.empty()) return false;
  if (from > to) {
    if (view.strides.back() != 1) return false;
    for (SymInt& stride : view.strides) stride = stride * (from / to);
    view.strides.back() = 1;
    view.sizes.back() = view.sizes.back() * (from / to);
    view.offset = view.offset * (from / to);
  } else if (from < to && !in_larger_units(view, to / from)) {
    return false;
  }
  return call.view(0, view.sizes, view.strides, view.offset);
}

bool reshaped(const SymbolicCall& call, View& view) {
  const at::Tensor& self = call.tensor(0);
  const SymSizes asked = call.symints(1);
  SymSizes sizes = at::infer_size_dv(asked, self.sym_numel());
  auto strides = at::detail::computeStride(self.sym_sizes(), self.sym_strides(), sizes);
  if (!strides) return false;
  view.sizes = std::move(sizes);
  view.strides = std::move(*strides);
  return true;
}

bool expand(const SymbolicCall& call, View& view) {
  const SymSizes asked = call.symints(1);
  const size_t added = asked.size() - view.sizes.size();
  SymSizes sizes = asked, strides(asked.size(), SymInt(0));
  for (size_t i = asked.size(); i-- > 0;) {
    const bool has = i >= added;
    const SymInt size = has ? view.sizes[i - added] : SymInt(1);
    if (asked[i] == -1 || asked[i] == size) {
      sizes[i] = size;
      // A new dimension of size one stands as if it held the others.
      const bool last = i + 1 == asked.size();
      strides[i] = has ? view.strides[i - added] : last ? SymInt(1) : sizes[i + 1] * strides[i + 1];
    } else if (size != 1) {
      return false;
    }
  }
  view.sizes = std::move(sizes);
  view.strides = std::move(strides);
  return true;
}

bool permute(const SymbolicCall& call, View& view) {
  const View base = view;
  const std::vector<int64_t> dims = call.integers(1);
  for (size_t i = 0; i < dims.size(); ++i) {
    view.sizes[i] = base.sizes[base.wrap(dims[i])];
    view.strides[i] = base.strides[base.wrap(dims[i])];
  }
  return true;
}

bool transpose(const SymbolicCall& call, View& view) {
  const int64_t dim0 = view.wrap(call.integer(1)), dim1 = view.wrap(call.integer(2));
  if (dim0 != dim1) view.swap(dim0, dim1);
  return true;
}

bool t(const SymbolicCall&, View& view) {
  if (view.sizes.size() == 2) view.swap(0, 1);
  return true;
}

bool squeeze(const SymbolicCall&, View& view) {
  for (int64_t dim = static_cast<int64_t>(view.sizes.size()); dim-- > 0;) {
    if (view.sizes[dim] == 1) view.erase(dim);
  }
  return true;
}

bool squeeze_dim(const SymbolicCall& call, View& view) {
  if (view.sizes.empty()) return true;
  const int64_t dim = view.wrap(call.integer(1));
  if (view.sizes[dim] == 1) view.erase(dim);
  return true;
}

bool squeeze_dims(const SymbolicCall& call, View& view) {
  const auto rank = static_cast<int64_t>(view.sizes.size());
  const auto mask = at::dim_list_to_bitset(call.integers(1), rank);
  for (int64_t dim = rank; dim-- > 0;) {
    if (mask[dim] && view.sizes[dim] == 1) view.erase(dim);
  }
  return true;
}

bool unsqueeze(const SymbolicCall& call, View& view) {
  const int64_t dim = view.wrap(call.integer(1), 1);
  view.insert(dim, 1, dim == static_cast<int64_t>(view.sizes.size()) ? SymInt(1) : view.sizes[dim] * view.strides[dim]);
  return true;
}

bool select(const SymbolicCall& call, View& view) {
  const int64_t dim = view.wrap(call.integer(1));
  const SymInt index = call.symint(2), size = view.sizes[dim];
  if (index >= size || index < -size) return false;
  view.offset += (index < 0 ? index + size : index) * view.strides[dim];
  view.erase(dim);
  return true;
}

SymInt clamped(const SymbolicCall& call, const SymInt& value, const SymInt& low, const SymInt& high) {
  if (call.is_unbacked(value)) return value.max(low).min(high.max(low));
  if (value < low) return low;
  return value > high ? high : value;
}

bool slice(const SymbolicCall& call, View& view) {
  const int64_t dim = view.wrap(call.integer(1)), step = call.integer(4);
  SymInt size = view.sizes[dim];
  const auto bound = [&](size_t i, SymInt otherwise) {
    if (call.is_none(i)) return otherwise;
    const SymInt given = call.symint(i);
    if (!given.is_heap_allocated() && given.as_int_unchecked() == INT64_MAX) return size;
    return given < 0 ? given + size : given;
  };
  const SymInt start = clamped(call, bound(2, 0), 0, size);
  const SymInt end = clamped(call, bound(3, size), start, size);
  view.narrow(dim, start, end - start, step);
  return true;
}

bool unfold(const SymbolicCall& call, View& view) {
  if (view.sizes.empty()) return false;
  const int64_t dim = view.wrap(call.integer(1)), size = call.integer(2), step = call.integer(3);
  const SymInt extent = view.sizes[dim], stride = view.strides[dim];
  if (extent < size) return false;
  view.sizes[dim] = (extent - size) / step + 1;
  view.strides[dim] = stride * step;
  view.insert(static_cast<int64_t>(view.sizes.size()), size, stride);
  return true;
}

/// (self, offset, dim1, dim2).
bool diagonal(const SymbolicCall& call, View& view) {
  const int64_t offset = call.integer(1), dim1 = view.wrap(call.integer(2)), dim2 = view.wrap(call.integer(3));
  const SymInt rows = view.sizes[dim1], columns = view.sizes[dim2];
  const SymInt stride = view.strides[dim1] + view.strides[dim2];
  const SymInt length = offset >= 0 ? rows.min(columns - offset) : (rows + offset).min(columns);
  if (length < 1) return false;
  view.offset += view.strides[offset >= 0 ? dim2 : dim1] * std::abs(offset);
  view.erase(std::max(dim1, dim2));
  view.erase(std::min(dim1, dim2));
  view.insert(static_cast<int64_t>(view.sizes.size()), length, stride);
  return true;
}

bool add_slices(SymbolicCall& call, int64_t dim, at::ArrayRef<SymInt> lengths) {
  if (lengths.size() != call.result_count()) return false;
  SymInt start = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    View view(call.tensor(0));
    view.narrow(dim, start, lengths[i]);
    if (!call.view(i, view.sizes, view.strides, view.offset)) return false;
    start += lengths[i];
  }
  return true;
}

bool split(SymbolicCall& call) {
  const View self(call.tensor(0));
  const int64_t dim = self.wrap(call.integer(2)), count = static_cast<int64_t>(call.result_count());
  const SymInt length = call.symint(1), size = self.sizes[dim];
  // That many pieces, the last of them not empty.
  if (!(length * (count - 1) < size && size <= length * count)) return false;
  SymSizes lengths(count, length);
  lengths.back() = size - length * (count - 1);
  return add_slices(call, dim, lengths);
}

bool split_with_sizes(SymbolicCall& call) {
  const View self(call.tensor(0));
  const int64_t dim = self.wrap(call.integer(2));
  const SymSizes lengths = call.symints(1);
  SymInt total = 0;
  for (const SymInt& length : lengths) {
    if (length < 0) return false;
    total += length;
  }
  return total == self.sizes[dim] && add_slices(call, dim, lengths);
}

/// As many results as the size says: where that is no constant, declined.
bool unbind(SymbolicCall& call) {
  const View self(call.tensor(0));
  const int64_t dim = self.wrap(call.integer(1));
  if (self.sizes[dim] != static_cast<int64_t>(call.result_count())) return false;
  for (size_t i = 0; i < call.result_count(); ++i) {
    View view = self;
    view.offset += view.strides[dim] * static_cast<int64_t>(i);
    view.erase(dim);
    if (!call.view(i, view.sizes, view.strides, view.offset)) return false;
  }
  return true;
}

constexpr SymbolicRow rows[] = {
#define ROW_symbolic_view(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const SymbolicRow> symbolic_view_rules() { return rows; }

}  // namespace magneto::fake
