// Small matrix products and convolutions as sums of products: calling a library for them costs more than the
// arithmetic, and what is around them (bias, activation, residual) becomes part of the same kernel. Large ones are
// extern calls.
#include "lower/lowering.h"

namespace magneto::lower {
namespace {

/// Up to so many multiplications generated code is as fast as a library's call.
constexpr int64_t kSmallProduct = 1 << 15;
/// A product with a vector reads each element of the matrix once. Many short ones are the loads' cost, no library's.
constexpr int64_t kShortRow = 64;
/// Of products whose number of rows differs from run to run: a matrix of so many elements is worth no library's call,
/// however many rows there are.
constexpr int64_t kSmallMatrix = 1 << 10;

/// Argument `i` as it can be read many times: what takes computing is in memory.
T stored(Call& call, int i, bool read_once) {
  const T value = call.raw(i);
  NodeId id = value.id;
  while ((*value.dag)[id].kind == NodeKind::View) id = (*value.dag)[id].operands[0];
  const NodeKind kind = (*value.dag)[id].kind;
  if (read_once || kind == NodeKind::Leaf || kind == NodeKind::Number) return value;
  return {value.dag, call.lowering().leaf_of(call.value(i))};
}

/// a[..., m, k] times b[..., k, n] for equal leading sizes, in the dtype of the result; nothing if it is too large.
std::optional<T> product(Call& call, int first, int second) {
  const Dtype dtype = call.compute();
  const Sizes left = call.sizes(first), right = call.sizes(second);
  const int64_t rank = static_cast<int64_t>(left.size());
  const Size m = left[rank - 2], k = left[rank - 1], n = right[rank - 1];
  Sizes space(left.begin(), left.end() - 2);
  space.insert(space.end(), {m, n, k});
  const int64_t multiplications = count(space).hint();
  const bool short_rows = rank == 3 && n == 1 && k.hint() <= kShortRow;
  const int64_t most = call.lowering().program.choices.small_product.value_or(kSmallProduct);
  if (!loops::is_float(dtype) || call.lowering().dag.may_be_empty(space)) return std::nullopt;
  if (multiplications > most && !short_rows) return std::nullopt;
  if (!shapes::all_static(space) && (!shapes::all_static({n, k}) || (k * n).number() > kSmallMatrix))
    return std::nullopt;
  // All operands are read in the same space: [..., m, n, k].
  std::vector<Expr> a_map, b_map;
  for (int64_t dim = 0; dim + 2 < rank; ++dim) a_map.push_back(variable(dim));
  b_map = a_map;
  a_map.insert(a_map.end(), {variable(rank - 2), variable(rank)});
  b_map.insert(b_map.end(), {variable(rank), variable(rank - 1)});
  const T a = stored(call, first, n == 1).to(dtype), b = stored(call, second, m == 1).to(dtype);
  const T spread_a{a.dag, a.dag->view(a.id, std::move(a_map), space)};
  const T spread_b{b.dag, b.dag->view(b.id, std::move(b_map), space)};
  const T sum = reduce(Op::ReduceSum, spread_a * spread_b, {rank});
  Sizes sizes(space.begin(), space.end() - 1);
  return reshape(sum, sizes);
}

/// mm and bmm: (self, mat2).
bool matrix_product(Call& call) {
  const std::optional<T> result = product(call, 0, 1);
  return result && call.set_result(*result);
}

/// addmm and baddbmm: (self, mat1, mat2, beta, alpha). With beta zero, self counts for nothing, not even as NaN.
bool multiply_and_add(Call& call) {
  const double beta = call.number(3), alpha = call.number(4);
  std::optional<T> result = product(call, 1, 2);
  if (!result) return false;
  result = *result * alpha;
  if (beta != 0) result = *result + call.in(0) * beta;
  return call.set_result(*result);
}

/// A convolution has so many taps at most.
constexpr int64_t kFewTaps = 8;

/// (input, weight, bias, stride, padding, dilation, transposed, output padding, groups): of sequences, each channel by
/// itself, the recurrent models' "causal" ones.
bool convolve(Call& call) {
  const Dtype dtype = call.compute();
  const Sizes from = call.sizes(0), taps = call.sizes(1), to = call.result_sizes();
  if (!loops::is_float(dtype) || from.size() != 3 || call.flag(6)) return false;
  const int64_t length = taps[2].number();
  const std::optional<Size> fold = exact_quotient(to[1], from[1]);
  if (length > kFewTaps || length == 0 || Size(call.integer(8)) != from[1] || !fold) return false;
  if (call.lowering().dag.may_be_empty(to)) return false;
  const int64_t step = call.integers(3)[0], before = call.integers(4)[0], apart = call.integers(5)[0];
  const T x = stored(call, 0, false).to(dtype), weight = stored(call, 1, false).to(dtype);
  const T nothing = broadcast(call.number(dtype, 0), to);
  std::optional<T> sum;
  for (int64_t tap = 0; tap < length; ++tap) {
    const Expr at = variable(2) * Expr(step) + Expr(tap * apart - before);
    const Expr channel = shapes::floor_div(variable(1), fold->expr());
    const T read{x.dag, x.dag->view(x.id, {variable(0), channel, at}, to)};
    const T scale{x.dag, x.dag->view(weight.id, {variable(1), Expr(0), Expr(tap)}, to)};
    const T inside = read * scale;
    const T part{x.dag, x.dag->guard({{at, 0, from[2]}}, inside.id, nothing.id)};
    sum = sum ? *sum + part : part;
  }
  if (call.given(2)) sum = *sum + reshape(call.in(2), {to[1], 1});
  return call.set_result(*sum);
}

}  // namespace

std::span<const RuleRow> matmul_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_lowering_matmul(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::lower
