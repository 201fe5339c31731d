// Matrix products.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_addmm_activation_meta.h>
#include <ATen/ops/addmm_meta.h>
#include <ATen/ops/addmv_meta.h>
#include <ATen/ops/bmm_meta.h>
#include <ATen/ops/mm_meta.h>

#include "fake/shape_rules.h"
#include "fake/structured.h"

namespace magneto::fake {
namespace {

/// What the kernels check and the meta functions don't: tensors first..last have one dtype, and the kernel has it.
template <class C>
void check_dtypes(const C& call, size_t first, size_t last) {
  const c10::ScalarType dtype = call.tensor(first).scalar_type();
  for (size_t i = first + 1; i <= last; ++i) {
    TORCH_CHECK(call.tensor(i).scalar_type() == dtype,
                "expected m1 and m2 to have the same dtype, but got: ", c10::toString(dtype),
                " != ", c10::toString(call.tensor(i).scalar_type()));
  }
  if (!(class_of(dtype) & (kNumbers | kComplexes))) refuse_dtype(dtype);
}

/// True if a tensor among the first `count` arguments has a dtype that rules decline.
bool exotic(const Call& call, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (class_of(call.tensor(i).scalar_type()) == kNone) return true;
  }
  return false;
}

template <Rule rule, size_t tensor_count>
bool product(Call& call) {
  if (exotic(call, tensor_count) || !rule(call)) return false;
  check_dtypes(call, 0, tensor_count - 1);
  return true;
}

/// addmm, addmv: argument 0 is added, broadcast to the product's shape.
template <Rule rule>
bool added_product(Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (exotic(call, 3) || !rule(call)) return false;
  at::inferExpandGeometry_dimvector(self.sizes(), self.strides(), call.results()[0].toTensor().sizes());
  check_dtypes(call, 0, 2);
  return true;
}

template <class C>
void check_batches(const at::Tensor& left, const at::Tensor& right) {
  TORCH_CHECK(left.dim() == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(right.dim() == 3, "batch2 must be a 3D tensor");
  const auto a = sizes_of<C>(left), b = sizes_of<C>(right);
  TORCH_CHECK(b[0] == a[0] && b[1] == a[2], "Expected size for first two dimensions of batch2 tensor to be: [", a[0],
              ", ", a[2], "] but got: [", b[0], ", ", b[1], "].");
}

// Not the structured meta function: it expands its argument, an operator call.
template <bool inplace, class C>
bool baddbmm(C& call) {
  const at::Tensor &self = call.tensor(0), &left = call.tensor(1), &right = call.tensor(2);
  if constexpr (kPlain<C>) {
    if (exotic(call, 3)) return false;
  }
  const Sizes<C> sizes{size_of<C>(left, 0), size_of<C>(left, 1), size_of<C>(right, 2)};
  if constexpr (kPlain<C>) {
    at::inferExpandGeometry_dimvector(self.sizes(), self.strides(), sizes);  // throws
  } else if (!expands(sizes_of<C>(self), sizes)) {
    return false;
  }
  check_batches<C>(left, right);
  if (inplace) {
    using List = at::ArrayRef<Size<C>>;
    const auto own = sizes_of<C>(self);
    TORCH_CHECK(are_equal(own, sizes), "Bad in-place call: input tensor size ", List(own), " and output tensor size ",
                List(sizes), " should match");
  }
  check_dtypes(call, 0, 2);
  return inplace ? add_self(call) : add(call, sizes, self.scalar_type(), self.device());
}

/// addbmm(self, batch1, batch2, beta, alpha): the sum of the products.
bool addbmm(Call& call) {
  const at::Tensor &self = call.tensor(0), &left = call.tensor(1), &right = call.tensor(2);
  if (exotic(call, 3) || !self.is_cpu() || self.scalar_type() != left.scalar_type()) return false;
  check_batches<Call>(left, right);
  const std::array<int64_t, 2> sizes{left.size(1), right.size(2)};
  at::inferExpandGeometry_dimvector(self.sizes(), self.strides(), sizes);
  call.result(call.empty(sizes, self.scalar_type(), self.device()));
  check_dtypes(call, 0, 2);
  return true;
}

/// addr(self, vec1, vec2, beta, alpha), where self has the result's sizes.
bool addr(Call& call) {
  const at::Tensor &self = call.tensor(0), &left = call.tensor(1), &right = call.tensor(2);
  if (exotic(call, 3) || self.dim() != 2 || left.dim() != 1 || right.dim() != 1 || !self.is_contiguous()) return false;
  if (self.size(0) != left.size(0) || self.size(1) != right.size(0)) return false;
  if (!(class_of(self.scalar_type()) & kFloats) || self.numel() == 0) return false;
  if (self.scalar_type() != left.scalar_type() || self.scalar_type() != right.scalar_type()) return false;
  call.result(call.empty(self.sizes(), self.scalar_type(), self.device()));
  return true;
}

template <class C>
bool mv(C& call) {
  const at::Tensor &self = call.tensor(0), &vector = call.tensor(1);
  if constexpr (kPlain<C>) {
    if (exotic(call, 2)) return false;
  }
  TORCH_CHECK(self.dim() == 2 && vector.dim() == 1, "vector + matrix @ vector expected, got 1, ", self.dim(), ", ",
              vector.dim());
  const Size<C> rows = size_of<C>(self, 0), columns = size_of<C>(self, 1);
  const Size<C> length = size_of<C>(vector, 0);
  TORCH_CHECK(columns == length, "size mismatch, got input (", rows, "), mat (", rows, "x", columns, "), vec (", length,
              ")");
  check_dtypes(call, 0, 1);
  return add(call, {rows}, self.scalar_type(), self.device());
}

template <class C>
bool dot(C& call) {
  const at::Tensor &self = call.tensor(0), &other = call.tensor(1);
  if constexpr (kPlain<C>) {
    if (exotic(call, 2)) return false;
  }
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1, "1D tensors expected, but got ", self.dim(), "D and ", other.dim(),
              "D tensors");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "dot : expected both vectors to have same dtype, but found ",
              self.scalar_type(), " and ", other.scalar_type());
  const Size<C> left = numel_of<C>(self), right = numel_of<C>(other);
  TORCH_CHECK(left == right, "inconsistent tensor size, expected tensor [", left, "] and src [", right,
              "] to have the same number of elements, but got ", left, " and ", right, " elements respectively");
  if (!(class_of(self.scalar_type()) & (kNumbers | kComplexes))) refuse_dtype(self.scalar_type());
  return add(call, {}, self.scalar_type(), self.device());
}

/// _grouped_mm(self, mat2, offs, bias, out_dtype): experts' products. Only what the CPU's fallback takes: no bias.
bool grouped_mm(Call& call) {
  const at::Tensor &left = call.tensor(0), &right = call.tensor(1);
  const at::Tensor offsets = call.optional_tensor(2);
  if (!left.device().is_cpu() || !call.is_none(3) || !call.is_none(4)) return false;
  if (left.scalar_type() != right.scalar_type() || !(class_of(left.scalar_type()) & (kHalves | kSingles))) return false;
  if (left.scalar_type() == c10::ScalarType::Double) return false;
  const bool flat_left = left.dim() == 2, flat_right = right.dim() == 2;
  if ((!flat_left && left.dim() != 3) || (!flat_right && right.dim() != 3)) return false;
  if (offsets.defined() != (flat_left || flat_right)) return false;
  if (offsets.defined() && (offsets.dim() != 1 || offsets.scalar_type() != c10::ScalarType::Int)) return false;
  const int64_t alignment = 16 / static_cast<int64_t>(left.itemsize());
  auto aligned = [&](const at::Tensor& matrix) {
    const bool rows = matrix.stride(-1) == 1 && matrix.stride(-2) >= std::max<int64_t>(1, matrix.size(-1));
    const bool columns = matrix.stride(-2) == 1 && matrix.stride(-1) >= std::max<int64_t>(1, matrix.size(-2));
    return columns ? matrix.stride(-1) % alignment == 0 : rows && matrix.stride(-2) % alignment == 0;
  };
  if (!aligned(left) || !aligned(right)) return false;
  if (left.size(-1) != right.size(-2)) return false;
  at::DimVector sizes;
  if (flat_left && flat_right) {
    sizes = {offsets.size(0), left.size(0), right.size(1)};
  } else if (flat_left) {
    if (offsets.size(0) != right.size(0)) return false;
    sizes = {left.size(0), right.size(-1)};
  } else if (flat_right) {
    if (offsets.size(0) != left.size(0)) return false;
    sizes = {left.size(1), right.size(1)};
  } else {
    if (left.size(0) != right.size(0)) return false;
    sizes = {left.size(0), left.size(1), right.size(-1)};
  }
  // Rows are padded to 16 bytes.
  const int64_t padded = (sizes.back() + alignment - 1) / alignment * alignment;
  at::DimVector strides{padded, 1};
  if (sizes.size() == 3) strides.insert(strides.begin(), sizes[1] * padded);
  call.result(call.empty(sizes, strides, left.scalar_type(), left.device()));
  return true;
}

/// int8 by int8, into int32.
template <class C>
bool integer_product(C& call) {
  const at::Tensor &a = call.tensor(0), &b = call.tensor(1);
  if (a.dim() != 2 || b.dim() != 2 || size_of<C>(a, 1) != size_of<C>(b, 0)) return false;
  if (a.scalar_type() != at::kChar || b.scalar_type() != at::kChar || !a.is_cpu() || !b.is_cpu()) return false;
  return add(call, {size_of<C>(a, 0), size_of<C>(b, 1)}, at::kInt, a.device());
}

}  // namespace

std::span<const RuleRow> matmul_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_matmul(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_matmul_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_matmul(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
