// Linear algebra: batches of matrices, Fourier transforms, and distances. Most rules are of sizes alone, of operators
// whose dtypes and strides PyTorch's kernels say.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_linalg_slogdet_meta.h>
#include <ATen/ops/linalg_lu_factor_ex_meta.h>

#include "fake/shape_rules.h"
#include "fake/structured.h"

namespace magneto::fake {
namespace {

using c10::SymInt;

/// The sizes of the batch that a matrix stands in.
SymSizes batch_of(const SymSizes& sizes) { return SymSizes(sizes.begin(), sizes.end() - 2); }

SymSizes with(SymSizes sizes, std::initializer_list<SymInt> more) {
  sizes.append(more.begin(), more.end());
  return sizes;
}

bool is_square(const SymSizes& sizes) { return sizes.size() >= 2 && sizes.end()[-2] == sizes.end()[-1]; }

/// A square matrix, and a number for each that says what went wrong.
bool square_and_info(SymbolicCall& call) {
  const SymSizes sizes = call.sizes(0);
  return is_square(sizes) && call.dense(0, sizes) && call.dense(1, batch_of(sizes));
}

/// Raises for data, and gives nothing.
bool gives_nothing(SymbolicCall&) { return true; }

/// The determinant, LU and pivots.
bool det(SymbolicCall& call) {
  const SymSizes sizes = call.sizes(0);
  if (!is_square(sizes)) return false;
  return call.dense(0, batch_of(sizes)) && call.dense(1, sizes) && call.dense(2, with(batch_of(sizes), {sizes.back()}));
}

/// (A, B): the result, LU, pivots and info.
bool solve(SymbolicCall& call) {
  const SymSizes a = call.sizes(0), b = call.sizes(1);
  if (!is_square(a) || a.size() != b.size() || !same_sizes(batch_of(a), batch_of(b)) || a.end()[-1] != b.end()[-2]) {
    return false;
  }
  return call.dense(0, b) && call.dense(1, a) && call.dense(2, with(batch_of(a), {a.back()})) &&
         call.dense(3, batch_of(a));
}

/// (x1, x2, ...): a distance for each pair of rows.
bool distances(SymbolicCall& call) {
  const SymSizes a = call.sizes(0), b = call.sizes(1);
  if (a.size() < 2 || b.size() < 2 || a.back() != b.back()) return false;
  const SymSizes batch = broadcast_sizes(batch_of(a), batch_of(b));
  return all_results(call, with(batch, {a.end()[-2], b.end()[-2]}));
}

/// (self, dimensions, normalisation, half): of the last one half, and the middle, are left.
bool fft_of_reals(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const std::vector<int64_t> dims = call.integers(1);
  if (dims.empty()) return false;
  SymInt& last = sizes[wrapped(dims.back(), sizes)];
  if (call.arg(3).toBool()) last = last / 2 + 1;
  return all_results(call, sizes);
}

/// (self, dimensions, normalisation, length of the last one).
bool fft_to_reals(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const std::vector<int64_t> dims = call.integers(1);
  if (dims.empty()) return false;
  sizes[wrapped(dims.back(), sizes)] = call.symint(3);
  return all_results(call, sizes);
}

/// (self, offset, dim1, dim2): one dimension more.
template <class C>
bool diag_embed(C& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t offset = call.integer(1), rank = self.dim() + 1;
  const int64_t dim1 = at::maybe_wrap_dim(call.integer(2), rank), dim2 = at::maybe_wrap_dim(call.integer(3), rank);
  TORCH_CHECK(dim1 != dim2, "diagonal dimensions cannot be identical ", call.integer(2), ", ", call.integer(3));
  const Size<C> side = size_of<C>(self, -1) + std::abs(offset);
  auto sizes = sizes_of<C>(self);
  sizes.pop_back();
  sizes.insert(sizes.begin() + std::min(dim1, dim2), side);
  sizes.insert(sizes.begin() + std::max(dim1, dim2), side);
  return add(call, sizes, self.scalar_type(), self.device());
}

/// (A, full matrices, with vectors): without them they are empty.
bool svd(SymbolicCall& call) {
  const SymSizes sizes = call.sizes(0);
  if (sizes.size() < 2) return false;
  const SymInt rows = sizes.end()[-2], columns = sizes.end()[-1], least = rows.min(columns);
  const bool full = call.arg(1).toBool();
  if (!call.dense(1, with(batch_of(sizes), {least}))) return false;
  if (!call.arg(2).toBool()) return true;
  return call.dense(0, with(batch_of(sizes), {rows, full ? rows : least})) &&
         call.dense(2, with(batch_of(sizes), {full ? columns : least, columns}));
}

/// (A, "reduced", "complete" or "r", which leaves Q empty).
bool qr(SymbolicCall& call) {
  const SymSizes sizes = call.sizes(0);
  if (sizes.size() < 2) return false;
  const std::string_view mode = call.arg(1).toStringView();
  const SymInt rows = sizes.end()[-2], columns = sizes.end()[-1];
  const SymInt inner = mode == "complete" ? rows : rows.min(columns);
  return (mode == "r" || call.dense(0, with(batch_of(sizes), {rows, inner}))) &&
         call.dense(1, with(batch_of(sizes), {inner, columns}));
}

/// (A, which triangle, with vectors).
bool eigh(SymbolicCall& call) {
  const SymSizes sizes = call.sizes(0);
  if (!is_square(sizes)) return false;
  return call.dense(0, with(batch_of(sizes), {sizes.back()})) && (!call.arg(2).toBool() || call.dense(1, sizes));
}

/// As large as the transposed matrix.
bool pinv(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  if (sizes.size() < 2) return false;
  std::swap(sizes.end()[-1], sizes.end()[-2]);
  return all_results(call, sizes);
}

/// (a, b, dim): vectors of three numbers.
bool cross(SymbolicCall& call) {
  const SymSizes a = call.sizes(0), b = call.sizes(1);
  if (a.size() != b.size() || a.empty()) return false;
  const SymSizes sizes = broadcast_sizes(a, b);
  return sizes[wrapped(call.integer(2), sizes)] == 3 && all_results(call, sizes);
}

bool is_matrix(const at::Tensor& tensor) {
  return tensor.is_cpu() && (class_of(tensor.scalar_type()) & (kSingles | kComplexes)) && tensor.dim() >= 2 &&
         !tensor.is_conj();
}

/// Matrices column after column, as LAPACK wants them.
at::DimVector by_columns(const at::DimVector& sizes) {
  at::DimVector transposed = sizes;
  std::swap(transposed.end()[-2], transposed.back());
  at::DimVector strides = strides_in_format(transposed, at::MemoryFormat::Contiguous);
  std::swap(strides.end()[-2], strides.back());
  return strides;
}

/// linalg_solve_triangular(A, B, *, upper, left, unitriangular): as large as B.
template <class C>
bool solve_triangular(C& call) {
  const at::Tensor &left = call.tensor(0), &right = call.tensor(1);
  if (kPlain<C> && (!is_matrix(left) || !is_matrix(right) || left.scalar_type() != right.scalar_type())) return false;
  const auto a = sizes_of<C>(left), b = sizes_of<C>(right);
  if (a.end()[-2] != a.back() || a.back() != (call.boolean(3) ? b.end()[-2] : b.back())) return false;
  using List = at::ArrayRef<Size<C>>;
  auto sizes = broadcast(List(a).slice(0, a.size() - 2), List(b).slice(0, b.size() - 2));
  sizes.append(b.end() - 2, b.end());
  return add(call, sizes, right.scalar_type(), right.device(), by_columns);
}

/// linalg_matrix_exp(self).
template <class C>
bool matrix_exp(C& call) {
  const at::Tensor& self = call.tensor(0);
  if (kPlain<C> && (!is_matrix(self) || !self.is_contiguous() || self.numel() == 0)) return false;
  const auto sizes = sizes_of<C>(self);
  return sizes.end()[-2] == sizes.back() && add(call, sizes, self.scalar_type(), self.device());
}

/// linalg_householder_product(input, tau): reflectors below the diagonal, and their factors.
template <class C>
bool householder_product(C& call) {
  const at::Tensor &input = call.tensor(0), &tau = call.tensor(1);
  if (kPlain<C> && (!is_matrix(input) || input.scalar_type() != tau.scalar_type())) return false;
  const auto sizes = sizes_of<C>(input), factors = sizes_of<C>(tau);
  if (factors.size() + 1 != sizes.size() || sizes.end()[-2] < sizes.back() || sizes.back() < factors.back())
    return false;
  if (!std::equal(sizes.begin(), sizes.end() - 2, factors.begin())) return false;
  return add(call, sizes, input.scalar_type(), input.device(), by_columns);
}

/// cholesky_inverse(self, upper).
template <class C>
bool cholesky_inverse(C& call) {
  const at::Tensor& self = call.tensor(0);
  if (kPlain<C> && !is_matrix(self)) return false;
  const auto sizes = sizes_of<C>(self);
  return sizes.end()[-2] == sizes.back() && add(call, sizes, self.scalar_type(), self.device(), by_columns);
}

/// (A, pivot, check_errors): LU, pivots and info.
bool lu_factor(SymbolicCall& call) {
  const SymSizes sizes = call.sizes(0);
  if (sizes.size() < 2) return false;
  const SymInt least = sizes.end()[-2].min(sizes.back());
  return call.add(sizes) && call.add(with(batch_of(sizes), {least})) && call.add(batch_of(sizes));
}

/// Sign and logarithm of the determinant, LU and pivots.
bool slogdet(SymbolicCall& call) {
  const SymSizes sizes = call.sizes(0);
  return is_square(sizes) && call.add(batch_of(sizes)) && call.add(batch_of(sizes)) && call.add(sizes) &&
         call.add(with(batch_of(sizes), {sizes.back()}));
}

}  // namespace

std::span<const RuleRow> linalg_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_linalg(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_linalg_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_linalg(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
