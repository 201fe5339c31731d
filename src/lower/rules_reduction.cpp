// Reductions, and the operators that are made of them: softmax, norms, running sums.
//
// Means and variances go over the data twice, first for the mean, then for the squared distances from it: a row that a
// kernel works on is in the nearest cache, and nothing cancels.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lower/rules.h"

namespace magneto::lower {
namespace {

/// The dimensions that argument `i` names; all of them for None or an empty list.
std::vector<int64_t> dims_of(Call& call, int i, int64_t rank) {
  std::vector<int64_t> dims;
  if (i >= 0 && call.given(i)) {
    for (const int64_t dim : call.integers(i)) dims.push_back(Call::wrap(dim, rank));
  }
  if (dims.empty()) {
    dims.resize(rank);
    std::iota(dims.begin(), dims.end(), 0);
  }
  if (rank == 0) dims.clear();
  return dims;
}

/// How many elements one result is made of.
Size elements(const T& x, const std::vector<int64_t>& dims) {
  Size number = 1;
  for (const int64_t dim : dims) number *= x.node().sizes[dim];
  return number;
}

bool reduces_nothing(const T& x, const std::vector<int64_t>& dims) { return x.dag->may_be_empty({elements(x, dims)}); }

/// A reduction of everything has one row, which is one thread's. Where it is much, its leading dimensions become rows
/// of a first kernel; a second one reduces what these give.
constexpr int64_t kMuch = 1 << 16, kLeastRows = 16, kMostRows = 1 << 12;

/// How many of the leading dimensions; 0: it stays one.
size_t rows_of_all(const Sizes& sizes) {
  int64_t rows = 1;
  for (size_t dim = 0; dim + 1 < sizes.size() && rows < kLeastRows; ++dim) {
    rows *= sizes[dim].hint();
    if (rows >= kLeastRows && rows <= kMostRows) return dim + 1;
  }
  return 0;
}

/// Sums, products and extremes.
T reduced(Op op, T x, const std::vector<int64_t>& dims) {
  if (dims.empty()) return x;
  if (count(x.sizes()).hint() < kMuch || static_cast<int64_t>(dims.size()) != x.rank()) return reduce(op, x, dims);
  if (x.rank() == 1) {
    const std::optional<Size> part = exact_quotient(x.sizes()[0], kLeastRows);
    if (!part) return reduce(op, x, dims);
    return reshape(reduce(Dag::of_parts(op), reduce(op, reshape(x, {kLeastRows, *part}), {1}), {0}), {1});
  }
  const size_t rows = rows_of_all(x.sizes());
  if (rows == 0) return reduce(op, x, dims);
  std::vector<int64_t> outer(x.rank()), inner;
  std::iota(outer.begin(), outer.end(), 0);
  inner.assign(outer.begin() + static_cast<ptrdiff_t>(rows), outer.end());
  outer.resize(rows);
  return reduce(Dag::of_parts(op), reduce(op, x, inner), outer);
}

/// What is reduced as a whole is read as it lies in memory: the first argument's dimensions by their strides.
T in_memory_order(const Call& call, T x, const std::vector<int64_t>& dims) {
  const Sizes strides = graph::strides_of(call.meta(0)), sizes = x.sizes();
  if (static_cast<int64_t>(dims.size()) != x.rank() || strides.size() != sizes.size()) return x;
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a].hint() > strides[b].hint(); });
  if (std::is_sorted(order.begin(), order.end())) return x;
  std::vector<Expr> map(sizes.size());
  Sizes ordered;
  for (size_t i = 0; i < order.size(); ++i) {
    map[order[i]] = Expr::variable(static_cast<int32_t>(i));
    ordered.push_back(sizes[order[i]]);
  }
  return {x.dag, x.dag->view(x.id, std::move(map), std::move(ordered))};
}

T sum(T x, const std::vector<int64_t>& dims) { return reduced(Op::ReduceSum, x, dims); }
T greatest(T x, const std::vector<int64_t>& dims) { return reduced(Op::ReduceMax, x, dims); }

/// Eager adds in a tree. Here as many floats as this in one number are added in parts, and the parts in double.
constexpr int64_t kLong = 128;

bool is_long(Call& call, const T& x, const std::vector<int64_t>& dims) {
  const bool single = call.result_meta().dtype == c10::kFloat && x.dtype() == Dtype::F32;
  return single && elements(x, dims).hint() >= kLong;
}

/// sum(dim_IntList) and mean: (self, dim, keepdim, dtype), or (self, dtype).
template <bool mean>
bool sum_rule(Call& call) {
  T x = call.in(0);
  if (x.dtype() == Dtype::Bool) return false;
  const auto dims = dims_of(call, call.at("dim"), x.rank());
  x = in_memory_order(call, x, dims);
  T result = is_long(call, x, dims) ? reduced(Op::ReduceSumWide, x, dims) : sum(x, dims);
  if (mean) result = result / result.number(elements(x, dims));
  return call.set_reshaped_result(result);
}

bool product(Call& call) {
  T x = call.in(0);
  if (x.dtype() == Dtype::Bool) return false;
  const auto dims = dims_of(call, call.at("dim"), x.rank());
  if (is_long(call, x, dims)) x = x.to(Dtype::F64);
  return call.set_reshaped_result(reduced(Op::ReduceProd, x, dims));
}

template <Op op>
bool extreme(Call& call) {
  const T x = call.in(0);
  const auto dims = dims_of(call, call.at("dim"), x.rank());
  if (x.dtype() == Dtype::Bool || reduces_nothing(x, dims)) return false;
  return call.set_reshaped_result(reduced(op, in_memory_order(call, x, dims), dims));
}

/// max.dim, min.dim: values and indices.
template <Op op, Op arg>
bool extreme_with_index(Call& call) {
  const T x = call.raw(0);
  if (x.dtype() == Dtype::Bool || x.rank() == 0) return false;
  const int64_t dim = Call::wrap(call.integer(1), x.rank());
  if (reduces_nothing(x, {dim})) return false;
  const T position = call.index(Expr::variable(static_cast<int32_t>(dim)), x.sizes());
  call.set_reshaped_result(reduce(op, x, {dim}), 0);
  if (call.wanted(1)) call.set_reshaped_result({x.dag, x.dag->reduce(arg, x.id, {dim}, position.id)}, 1);
  return true;
}

template <Op op>
bool arg_extreme(Call& call) {
  T x = call.raw(0);
  if (x.rank() == 0 || x.dtype() == Dtype::Bool) return false;
  int64_t dim = 0;
  if (call.given(1)) {
    dim = Call::wrap(call.integer(1), x.rank());
  } else {
    x = reshape(x, {count(x.sizes())});
  }
  if (reduces_nothing(x, {dim})) return false;
  const T position = call.index(Expr::variable(static_cast<int32_t>(dim)), x.sizes());
  return call.set_reshaped_result({x.dag, x.dag->reduce(op, x.id, {dim}, position.id)});
}

template <Op op>
bool truth(Call& call) {
  const T x = call.raw(0).to(Dtype::Bool);
  const auto dims = dims_of(call, call.at("dim"), x.rank());
  return call.set_reshaped_result(dims.empty() ? x : reduce(op, in_memory_order(call, x, dims), dims));
}

struct Moments {
  T mean, squares;  // of the distances from the mean
};
Moments moments(T x, const std::vector<int64_t>& dims) {
  const T mean = sum(x, dims) / x.number(elements(x, dims));
  const T distance = x - mean;
  return {mean, sum(distance * distance, dims)};
}

/// The first element of each row.
T first(T x, const std::vector<int64_t>& dims) {
  std::vector<Expr> map;
  Sizes sizes = x.sizes();
  for (int64_t dim = 0; dim < x.rank(); ++dim) map.push_back(Expr::variable(static_cast<int32_t>(dim)));
  for (const int64_t dim : dims) map[dim] = 0, sizes[dim] = 1;
  return {x.dag, x.dag->view(x.id, std::move(map), std::move(sizes))};
}

/// var and std, with the mean or without: (self, dim, correction, keepdim). In double, as eager: squares of floats do
/// not overflow, and the mean of equal ones is what they are. Of doubles that takes the distances from one of them.
bool variance(Call& call, bool root, bool with_mean) {
  T x = call.in(0);
  if (!loops::is_float(x.dtype())) return false;
  const auto dims = dims_of(call, 1, x.rank());
  const double correction = call.given(2) ? call.number(2) : 1;
  const bool shifted = x.dtype() == Dtype::F64 && !reduces_nothing(x, dims);
  const T shift = shifted ? first(x, dims) : call.number(Dtype::F64, 0);
  x = shifted ? x - shift : x.to(Dtype::F64);
  Moments both = moments(x, dims);
  if (shifted) both.mean = both.mean + shift;
  const Size number = elements(x, dims);
  T degrees = x;
  if (number.is_static()) {
    degrees = x.number(std::max(0.0, static_cast<double>(number.number()) - correction));
  } else {
    degrees = maximum(call.index(number.expr(), {}).to(Dtype::F64) - correction, 0.0).to(x.dtype());
  }
  const T result = both.squares / degrees;
  call.set_reshaped_result(root ? sqrt(result) : result);
  // Where a distance is no number, eager's mean is none.
  if (with_mean) call.set_reshaped_result(select(both.squares == both.squares, both.mean, both.squares), 1);
  return true;
}

bool vector_norm(Call& call) {
  const T x = call.in(0);
  if (!loops::is_float(x.dtype())) return false;
  const auto dims = dims_of(call, 2, x.rank());
  const double order = call.number(1);
  if (order == 2) return call.set_reshaped_result(sqrt(sum(x * x, dims)));
  if (order == 1) return call.set_reshaped_result(sum(abs(x), dims));
  if (order == INFINITY && !reduces_nothing(x, dims)) return call.set_reshaped_result(greatest(abs(x), dims));
  return false;
}

/// _softmax and its like: (self, dim, half_to_float).
bool softmax(Call& call) {
  const T x = call.in(0);
  if (x.rank() == 0) return false;
  const std::vector<int64_t> dims{Call::wrap(call.integer(1), x.rank())};
  const T weights = exp(x - greatest(x, dims));
  // One division a row; the sum is 1 at least.
  return call.set_result(weights * reciprocal(sum(weights, dims)));
}

/// Rows of nothing but -inf give zeros.
bool safe_softmax(Call& call) {
  const T x = call.in(0);
  if (x.rank() == 0) return false;
  const std::vector<int64_t> dims{Call::wrap(call.integer(1), x.rank())};
  const T top = greatest(x, dims);
  const T weights = exp(x - top);
  return call.set_result(select(top == static_cast<double>(-INFINITY), broadcast(x.number(0), x.sizes()),
                                weights * reciprocal(sum(weights, dims))));
}

bool log_softmax(Call& call) {
  const T x = call.in(0);
  if (x.rank() == 0) return false;
  const std::vector<int64_t> dims{Call::wrap(call.integer(1), x.rank())};
  const T shifted = x - greatest(x, dims);
  return call.set_result(shifted - log(sum(exp(shifted), dims)));
}

bool logsumexp(Call& call) {
  const T x = call.in(0);
  if (!loops::is_float(x.dtype()) || x.rank() == 0) return false;
  const auto dims = dims_of(call, 1, x.rank());
  if (reduces_nothing(x, dims)) return false;
  const T top = greatest(x, dims);
  // inf - inf is no number: eager takes zero as the shift there.
  const T shift = select(abs(top) == static_cast<double>(INFINITY), broadcast(x.number(0), top.sizes()), top);
  return call.set_reshaped_result(log(sum(exp(x - shift), dims)) + shift);
}

T scale_and_shift(Call& call, T x, int weight, int bias, Dtype dtype, const Sizes& sizes) {
  if (call.given(weight)) x = x * reshape(call.in(weight, dtype), sizes);
  if (call.given(bias)) x = x + reshape(call.in(bias, dtype), sizes);
  return x;
}

/// (input, normalized_shape, weight, bias, eps) -> output, mean, rstd.
bool layer_norm(Call& call) {
  const T x = call.in(0);
  const Sizes inner = call.size_list(1);
  std::vector<int64_t> dims(inner.size());
  std::iota(dims.begin(), dims.end(), x.rank() - static_cast<int64_t>(inner.size()));
  if (reduces_nothing(x, dims)) return false;
  const Moments both = moments(x, dims);
  const T scale = rsqrt(both.squares / x.number(elements(x, dims)) + call.number(4));
  call.set_result(scale_and_shift(call, (x - both.mean) * scale, 2, 3, x.dtype(), inner));
  if (call.wanted(1)) call.set_reshaped_result(both.mean, 1);
  if (call.wanted(2)) call.set_reshaped_result(scale, 2);
  return true;
}

/// (input, normalized_shape, weight, eps).
bool rms_norm(Call& call) {
  const T x = call.in(0);
  const Sizes inner = call.size_list(1);
  std::vector<int64_t> dims(inner.size());
  std::iota(dims.begin(), dims.end(), x.rank() - static_cast<int64_t>(inner.size()));
  if (reduces_nothing(x, dims) || call.result_count() > 2) return false;
  double epsilon =
      x.dtype() == Dtype::F64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  if (call.given(3)) epsilon = call.number(3);
  const T scale = rsqrt(sum(x * x, dims) / x.number(elements(x, dims)) + epsilon);
  call.set_result(scale_and_shift(call, x * scale, 2, -1, x.dtype(), inner));
  if (call.wanted(1)) call.set_reshaped_result(scale, 1);
  return true;
}

/// (input, weight, bias, N, C, HxW, group, eps) -> output, mean, rstd.
bool group_norm(Call& call) {
  const T x = call.in(0);
  const Size batch = call.size(3), area = call.size(5);
  const int64_t channels = call.integer(4), groups = call.integer(6);
  if (x.dag->may_be_empty(x.sizes())) return false;
  const T grouped = reshape(x, {batch, groups, channels / groups, area});
  const std::vector<int64_t> dims{2, 3};
  const Moments both = moments(grouped, dims);
  const T scale = rsqrt(both.squares / x.number(elements(grouped, dims)) + call.number(7));
  const Sizes per_channel{1, groups, channels / groups, 1};
  call.set_reshaped_result(scale_and_shift(call, (grouped - both.mean) * scale, 1, 2, x.dtype(), per_channel));
  if (call.wanted(1)) call.set_reshaped_result(both.mean, 1);
  if (call.wanted(2)) call.set_reshaped_result(scale, 2);
  return true;
}

/// Batch norm with running statistics: (input, weight, bias, mean, var, ..., eps). `epsilon` is that argument.
bool batch_norm_with(Call& call, int epsilon) {
  const T x = call.in(0);
  if (x.rank() < 2 || !call.given(3) || !call.given(4)) return false;
  Sizes per_channel(x.rank(), 1);
  per_channel[1] = x.sizes()[1];
  const auto channel = [&](int i) { return reshape(call.in(i, x.dtype()), per_channel); };
  // As eager: one factor and one term for each channel.
  T factor = 1.0 / sqrt(channel(4) + call.number(epsilon));
  if (call.given(1)) factor = factor * channel(1);
  T term = -(channel(3) * factor);
  if (call.given(2)) term = channel(2) + term;
  call.set_result(x * factor + term);
  for (size_t k = 1; k < call.result_count(); ++k) {
    if (!call.wanted(k)) continue;
    if (count(call.result_sizes(k)) != 0) return false;
    call.set_result(broadcast(call.number(x.dtype(), 0), call.result_sizes(k)), k);
  }
  return true;
}

/// Batch norm with the statistics of the batch: (input, weight, bias, mean, var, training, momentum, eps) -> output,
/// mean, reciprocal deviation; of the functional operator the moved running statistics too.
bool batch_norm_of_batch(Call& call) {
  const T x = call.in(0);
  if (x.rank() < 2 || (x.dtype() != Dtype::F32 && x.dtype() != Dtype::F64)) return false;
  if (x.dag->may_be_empty(x.sizes())) return false;
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < static_cast<int64_t>(x.rank()); ++dim) dims.push_back(dim);
  // Eager adds floats in double.
  const T number = x.number(elements(x, dims)).to(Dtype::F64);
  const T mean = (sum(x.to(Dtype::F64), dims) / number).to(x.dtype());
  const T distance = x - mean;
  const T squares = sum((distance * distance).to(Dtype::F64), dims);
  const T scale = rsqrt(squares / number + call.number(7)).to(x.dtype());
  Sizes per_channel(x.rank(), 1);
  per_channel[1] = x.sizes()[1];
  call.set_result(scale_and_shift(call, distance * scale, 1, 2, x.dtype(), per_channel));
  if (call.wanted(1)) call.set_reshaped_result(mean, 1);
  if (call.wanted(2)) call.set_reshaped_result(scale, 2);
  if (call.result_count() < 5) return true;
  const double momentum = call.number(6);
  const auto moved = [&](int running, const T& now) {
    call.set_reshaped_result(now * momentum + reshape(call.in(running, x.dtype()), per_channel) * (1 - momentum),
                             running);
  };
  if (call.wanted(3)) moved(3, mean);
  if (call.wanted(4)) moved(4, (squares / (number - 1.0)).to(x.dtype()));
  return true;
}

bool batch_norm(Call& call) { return call.flag(5) ? batch_norm_of_batch(call) : batch_norm_with(call, 7); }
bool batch_norm_no_training(Call& call) { return batch_norm_with(call, 6); }

template <Op op>
bool running(Call& call) {
  // As eager: of float in double, of narrower ones in float.
  const bool single = call.result_meta().dtype == c10::kFloat;
  const T x = call.in(0, single ? Dtype::F64 : call.compute());
  if (x.dtype() == Dtype::Bool || x.rank() == 0) return false;
  const int64_t dim = Call::wrap(call.integer(1), x.rank());
  return call.set_result({x.dag, x.dag->scan(op, x.id, dim)});
}

bool var(Call& call) { return variance(call, false, false); }

bool standard_deviation(Call& call) { return variance(call, true, false); }

bool var_mean(Call& call) { return variance(call, false, true); }

bool std_mean(Call& call) { return variance(call, true, true); }

}  // namespace

std::span<const RuleRow> reduction_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_lowering_reduction(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::lower
