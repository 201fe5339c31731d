// New tensors from sizes (zeros, arange...), from another tensor's (`*_like`, `new_*`), and copies. For numbers and
// sizes (shape_rules.h).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/ops/tril_meta.h>
#include <ATen/ops/triu_meta.h>
#include <c10/core/DefaultDtype.h>

#include "fake/dispatch_key.h"
#include "fake/shape_rules.h"
#include "fake/structured.h"

namespace magneto::fake {
namespace {

using c10::SymInt;

/// The four arguments (dtype, layout, device, pin_memory) that start at `first`.
struct Options {
  c10::ScalarType dtype;
  c10::Device device;
  bool plain;  // strided, not pinned: what rules cover

  template <class C>
  Options(const C& call, size_t first, c10::ScalarType default_dtype, c10::Device default_device = c10::kCPU)
      : dtype(call.is_none(first) ? default_dtype : call.arg(first).toScalarType()),
        device(call.is_none(first + 2) ? default_device : call.arg(first + 2).toDevice()),
        plain((call.is_none(first + 1) || call.arg(first + 1).toLayout() == c10::kStrided) &&
              (call.is_none(first + 3) || !call.boolean(first + 3))) {}
};

template <class List>
void check_sizes(const List& sizes) {
  for (const auto& size : sizes) {
    TORCH_CHECK(size >= 0, "Trying to create tensor with negative dimension ", size, ": ",
                at::ArrayRef<typename List::value_type>(sizes));
  }
}

template <class C>
at::MemoryFormat format_at(const C& call, size_t i, at::MemoryFormat otherwise) {
  return call.is_none(i) ? otherwise : call.arg(i).toMemoryFormat();
}

template <class C>
bool add_new(C& call, const Sizes<C>& sizes, const Options& options) {
  if (kPlain<C> && !options.plain) return false;
  check_sizes(sizes);
  return add(call, sizes, options.dtype, options.device);
}

/// Sizes in argument `of`, options from `first` on; the default dtype is float. `floats`: the kernel wants floats.
template <size_t first, bool floats = false, bool normal = false, size_t of = 0, class C>
bool from_sizes(C& call) {
  const Options options(call, first, c10::get_default_dtype_as_scalartype());
  const auto sizes = sizes_argument(call, of);
  check_sizes(sizes);
  if (kPlain<C> && floats && class_of(options.dtype) == kNone) return false;
  // normal_ looks at the dtype only if there is something to fill.
  if (kPlain<C> && floats && !(normal && c10::multiply_integers(sizes) == 0)) {
    check_dtype(options.dtype, kFloats | kComplexes, kNone);
  }
  return add_new(call, sizes, options);
}

template <class C>
bool empty(C& call) {
  const Options options(call, 1, c10::get_default_dtype_as_scalartype());
  if (kPlain<C> && !options.plain) return false;
  const auto sizes = sizes_argument(call, 0);
  check_sizes(sizes);
  const at::MemoryFormat format = format_at(call, 5, at::MemoryFormat::Contiguous);
  TORCH_CHECK(format != at::MemoryFormat::Preserve, "unsupported memory format option ", format);
  return add(call, sizes, options.dtype, options.device,
             [&](const at::DimVector& now) { return strides_in_format(now, format); });
}

template <class List>
void check_strides(const List& sizes, const List& strides) {
  check_sizes(sizes);
  TORCH_CHECK(sizes.size() == strides.size(), "dimensionality of sizes (", sizes.size(),
              ") must match dimensionality of strides (", strides.size(), ")");
  for (const auto& stride : strides) TORCH_CHECK(stride >= 0, "empty_strided: strides must be non-negative");
}

/// Sizes in argument `of`, then strides.
template <size_t of, class C>
bool add_strided(C& call, const Options& options) {
  if (kPlain<C> && !options.plain) return false;
  const auto sizes = sizes_argument(call, of), strides = sizes_argument(call, of + 1);
  check_strides(sizes, strides);
  if constexpr (kPlain<C>) {
    call.result(call.empty(sizes, strides, options.dtype, options.device));
    return true;
  } else {
    return call.view(0, sizes, strides, 0);
  }
}

template <class C>
bool empty_strided(C& call) {
  return add_strided<0>(call, Options(call, 2, c10::get_default_dtype_as_scalartype()));
}

bool empty_strided(SymbolicCall& call) { return call.view(0, call.symints(0), call.symints(1), 0); }

/// The dtype that a fill value asks for.
c10::ScalarType dtype_of(const c10::Scalar& value) {
  if (value.isComplex()) return c10::toComplexType(c10::get_default_dtype_as_scalartype());
  if (value.isBoolean()) return c10::ScalarType::Bool;
  return value.isIntegral(false) ? c10::ScalarType::Long : c10::get_default_dtype_as_scalartype();
}

template <class C>
bool full(C& call) {
  const c10::Scalar value = call.arg(1).toScalar();
  const Options options(call, 2, dtype_of(value));
  TORCH_CHECK(!value.isComplex() || c10::isComplexType(options.dtype), "value cannot be converted to type ",
              c10::toString(options.dtype), " without overflow");
  return add_new(call, sizes_argument(call, 0), options);
}

template <class C>
bool scalar_tensor(C& call) {
  return add_new(call, {}, Options(call, 1, c10::get_default_dtype_as_scalartype()));
}

int64_t arange_size(const Call&, const c10::Scalar& start, const c10::Scalar& end, const c10::Scalar& step,
                    c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Long ? at::native::compute_arange_size<int64_t>(start, end, step)
                                        : at::native::compute_arange_size<double>(start, end, step);
}

/// Of whole numbers; floats are as exact as integers.
SymInt arange_size(const SymbolicCall&, const c10::Scalar& start, const c10::Scalar& end, const c10::Scalar& step,
                   c10::ScalarType) {
  const auto whole = [](const c10::Scalar& number) {
    if (!number.isFloatingPoint()) return number.toSymInt();
    const double value = number.toDouble();
    TORCH_CHECK(value == std::floor(value) && std::abs(value) < 1e9, "the number of steps is not exact");
    return SymInt(static_cast<int64_t>(value));
  };
  const SymInt by = whole(step), way = whole(end) - whole(start);
  if (!by.maybe_as_int()) {
    TORCH_CHECK(by >= 1 && way >= 0, "upper bound and lower bound inconsistent with step sign");
    return way % by == 0 ? way / by : (way + by - 1) / by;
  }
  const int64_t pace = *by.maybe_as_int();
  TORCH_CHECK(pace != 0, "step must be nonzero");
  const SymInt length = pace > 0 ? way : -way;
  TORCH_CHECK(length >= 0, "upper bound and lower bound inconsistent with step sign");
  return (length + (std::abs(pace) - 1)) / std::abs(pace);
}

/// arange: arguments before `options` are end; start, end; or start, end, step.
template <size_t first, class C>
bool arange(C& call) {
  const c10::Scalar start = first == 1 ? c10::Scalar(0) : call.arg(0).toScalar();
  const c10::Scalar end = call.arg(first == 1 ? 0 : 1).toScalar();
  const c10::Scalar step = first == 3 ? call.arg(2).toScalar() : c10::Scalar(1);
  if (start.isComplex() || end.isComplex() || step.isComplex()) return false;
  const bool integral = start.isIntegral(true) && end.isIntegral(true) && step.isIntegral(true);
  const Options options(call, first, integral ? c10::ScalarType::Long : c10::get_default_dtype_as_scalartype());
  if (kPlain<C> && !(class_of(options.dtype) & kNumbers)) return false;
  return add_new(call, {arange_size(call, start, end, step, options.dtype)}, options);
}

template <class C>
bool linspace(C& call) {
  const Size<C> steps = size_argument(call, 2);
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  if (kPlain<C> && (call.arg(0).toScalar().isComplex() || call.arg(1).toScalar().isComplex())) return false;
  return add_new(call, {steps}, Options(call, 3, c10::get_default_dtype_as_scalartype()));
}

template <size_t first, class C>
bool eye(C& call) {
  const Size<C> rows = size_argument(call, 0), columns = size_argument(call, first - 1);
  TORCH_CHECK(rows >= 0, "n must be greater or equal to 0, got ", rows);
  TORCH_CHECK(columns >= 0, "m must be greater or equal to 0, got ", columns);
  return add_new(call, {rows, columns}, Options(call, first, c10::get_default_dtype_as_scalartype()));
}

void check_bounds(int64_t low, int64_t high) {
  TORCH_CHECK(low < high, "random_ expects 'from' to be less than 'to', but got from=", low, " >= to=", high);
}

/// randint: sizes in argument `sizes`, options from `first` on; the schema's default dtype is int64.
template <size_t sizes, size_t first = sizes + 1, class C>
bool randint(C& call) {
  if constexpr (kPlain<C>) check_bounds(sizes == 2 ? call.integer(0) : 0, call.integer(sizes - 1));
  const Options options(call, first, c10::ScalarType::Long);
  if (kPlain<C> && !(class_of(options.dtype) & (kNumbers | kBools))) return false;
  return add_new(call, sizes_argument(call, sizes), options);
}

template <size_t first, class C>
bool randperm(C& call) {
  const Size<C> count = size_argument(call, 0);
  TORCH_CHECK(count >= 0, "n must be non-negative, got", count);
  const Options options(call, first, c10::ScalarType::Long);
  if (kPlain<C> && options.dtype != c10::ScalarType::Long) return false;
  return add_new(call, {count}, options);
}

/// Like argument 0; options from `first` on, then the memory format.
template <size_t first, bool floats = false, class C>
bool like(C& call) {
  const at::Tensor& self = call.tensor(0);
  const Options options(call, first, self.scalar_type(), self.device());
  if (kPlain<C> && !options.plain) return false;
  if (kPlain<C> && floats && (class_of(options.dtype) & (kFloats | kBools | kIntegers)) == 0) return false;
  if (kPlain<C> && floats) check_dtype(options.dtype, kFloats, kNone);
  return add_like(call, self, options.dtype, options.device, format_at(call, first + 4, at::MemoryFormat::Preserve));
}

/// randint_like: below argument `options` - 1, from 0 or argument 1 on.
template <size_t options, class C>
bool randint_like(C& call) {
  if constexpr (kPlain<C>) check_bounds(options == 3 ? call.integer(1) : 0, call.integer(options - 1));
  const c10::ScalarType dtype = call.is_none(options) ? call.tensor(0).scalar_type() : call.arg(options).toScalarType();
  return (!kPlain<C> || class_of(dtype) & kReals) && like<options>(call);
}

/// new_*: sizes in argument 1, dtype and device of argument 0 unless given.
template <size_t first, class C>
bool new_from_sizes(C& call) {
  const at::Tensor& self = call.tensor(0);
  return add_new(call, sizes_argument(call, 1), Options(call, first, self.scalar_type(), self.device()));
}

template <class C>
bool new_empty_strided(C& call) {
  return add_strided<1>(call, Options(call, 3, call.tensor(0).scalar_type(), call.tensor(0).device()));
}

/// A copy of argument 0 that lies as that does; of one that overlaps itself, a dense one.
bool as_self_lies(SymbolicCall& call) {
  const at::Tensor& self = call.tensor(0);
  return call.view(0, call.sizes(0), self.sym_strides(), self.sym_storage_offset()) || like_self(call);
}

/// copy(self, src, non_blocking).
bool copy(SymbolicCall& call) { return expands(call.sizes(1), call.sizes(0)) && as_self_lies(call); }

/// _to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format).
template <class C>
bool to_copy(C& call) {
  const at::Tensor& self = call.tensor(0);
  const Options options(call, 1, self.scalar_type(), self.device());
  if (kPlain<C> && (!options.plain || self.is_conj() || self.is_neg())) return false;
  return add_like(call, self, options.dtype, options.device, format_at(call, 6, at::MemoryFormat::Preserve));
}

/// cached_cast(self, leaf, dtype).
template <class C>
bool cached_cast(C& call) {
  const at::Tensor& self = call.tensor(0);
  c10::ScalarType dtype = self.scalar_type();
  if constexpr (kPlain<C>) dtype = static_cast<c10::ScalarType>(call.integer(2));
  return add_like(call, self, dtype, self.device(), at::MemoryFormat::Preserve);
}

template <class C>
bool clone(C& call) {
  const at::Tensor& self = call.tensor(0);
  if (kPlain<C> && (self.is_conj() || self.is_neg())) return false;
  return add_like(call, self, self.scalar_type(), self.device(), format_at(call, 1, at::MemoryFormat::Preserve));
}

bool gives_nothing(Call&) { return true; }

bool generator_state(Call& call) {
  static const int64_t bytes = [] {
    const BelowFake guard;
    return at::detail::createCPUGenerator().get_state().numel();
  }();
  call.result(call.empty({bytes}, at::kByte, at::kCPU));
  return true;
}

bool numpy_array(Call& call) {
  call.result(call.empty(call.ints(2), call.ints(3), static_cast<c10::ScalarType>(call.integer(4)), at::kCPU));
  return true;
}

}  // namespace

std::span<const RuleRow> factory_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_factory(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_factory_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_factory(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
