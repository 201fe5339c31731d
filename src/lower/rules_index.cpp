// Operators that move elements: which element of which operand stands where. (Views by metadata alone have no row:
// their index maps follow from strides, see lowering.cpp.)
#include <algorithm>

#include "lower/lowering.h"

namespace magneto::lower {
namespace {

std::vector<Expr> identity(int64_t rank) {
  std::vector<Expr> map;
  for (int64_t i = 0; i < rank; ++i) map.push_back(variable(i));
  return map;
}

T view(T x, std::vector<Expr> map, const Sizes& sizes) { return {x.dag, x.dag->view(x.id, std::move(map), sizes)}; }
T guard(const std::vector<Condition>& conditions, T inside, T outside) {
  return {inside.dag, inside.dag->guard(conditions, inside.id, outside.id)};
}

/// Up to so many operands a reader computes the one that its element is in; more are written where they stand.
constexpr size_t kMostPieces = 4;

bool is_computed(const T& x) {
  NodeId id = x.id;
  while (x.dag->operator[](id).kind == NodeKind::View) id = (*x.dag)[id].operands[0];
  return (*x.dag)[id].kind != NodeKind::Leaf;
}

bool cat(Call& call) {
  std::vector<T> pieces;
  const Sizes to = call.result_sizes(), strides = call.result_strides();
  for (const T& piece : call.list(0)) {
    // Eager skips empty tensors of one dimension, whatever the others are.
    if (piece.rank() == 1 && piece.sizes()[0] == 0) continue;
    pieces.push_back(piece);
  }
  if (pieces.empty()) return false;
  // Operands that are in memory anyway are copied as fast by eager.
  if (std::none_of(pieces.begin(), pieces.end(), is_computed)) return false;
  const int64_t dim = Call::wrap(call.integer(1), static_cast<int64_t>(to.size()));
  const Dtype dtype = call.compute();
  Sizes starts;
  Size start = 0;
  for (const T& piece : pieces) {
    starts.push_back(start);
    start += piece.sizes()[dim];
  }
  if (pieces.size() > kMostPieces) {
    std::vector<Piece> placed;
    for (size_t i = 0; i < pieces.size(); ++i) {
      placed.push_back({pieces[i].to(dtype).id, strides, starts[i] * strides[dim]});
    }
    return call.set_assembled_result(placed);
  }
  const auto placed = [&](size_t i) {
    std::vector<Expr> map = identity(pieces[i].rank());
    map[dim] = map[dim] - starts[i].expr();
    return view(pieces[i].to(dtype), std::move(map), to);
  };
  T result = placed(pieces.size() - 1);
  for (size_t i = pieces.size() - 1; i-- > 0;) {
    result = guard({{variable(dim), 0, starts[i + 1]}}, placed(i), result);
  }
  return call.set_result(result);
}

/// (tensors, dim).
bool stack(Call& call) {
  const std::vector<T> pieces = call.list(0);
  if (std::none_of(pieces.begin(), pieces.end(), is_computed)) return false;
  Sizes strides = call.result_strides();
  const int64_t dim = Call::wrap(call.integer(1), static_cast<int64_t>(strides.size()));
  const Size apart = strides[dim];
  strides.erase(strides.begin() + dim);
  std::vector<Piece> placed;
  for (const T& piece : pieces) {
    placed.push_back({piece.to(call.compute()).id, strides, Size(static_cast<int64_t>(placed.size())) * apart});
  }
  return call.set_assembled_result(placed);
}

/// (self, pad, value): pad names the dimensions from the last one on, two numbers each.
bool pad(Call& call) {
  const T x = call.raw(0);
  const std::vector<int64_t> amounts = call.integers(1);
  const Sizes from = x.sizes(), to = call.result_sizes();
  std::vector<Expr> map = identity(x.rank());
  std::vector<Condition> conditions;
  for (size_t i = 0; i < amounts.size() / 2; ++i) {
    const int64_t dim = x.rank() - 1 - static_cast<int64_t>(i), before = amounts[2 * i];
    map[dim] = map[dim] - Expr(before);
    if (before > 0 || amounts[2 * i + 1] > 0) conditions.push_back({variable(dim), before, from[dim] + before});
  }
  const T outside = broadcast(call.element(2, call.result_meta().dtype), to);
  return call.set_result(guard(conditions, view(x, std::move(map), to), outside));
}

/// What a part is written into: a tensor (self, src, ...), or, for the gradient of a view, zeros (grad, sizes, ...).
struct Into {
  T whole, part;

  Into(Call& call, bool gradient)
      : whole(gradient ? broadcast(call.in(0).number(0), call.result_sizes()) : call.raw(0)),
        part(call.in(gradient ? 0 : 1)) {}

  bool set_result(Call& call, const std::vector<Condition>& inside, std::vector<Expr> map) const {
    return call.set_result(guard(inside, view(part, std::move(map), whole.sizes()), whole));
  }
};

/// (self, src, dim, start, end, step) or (grad, sizes, dim, start, end, step).
template <bool gradient>
bool slice_scatter(Call& call) {
  const Into into(call, gradient);
  const int64_t dim = Call::wrap(call.integer(2), into.whole.rank()), step = call.integer(5);
  const Size size = into.whole.sizes()[dim], length = into.part.sizes()[dim];
  if (length.is_static() && length.number() == 0) return call.set_result(into.whole);
  // A start behind the end has no length: nothing is looked up.
  Size start = call.given(3) ? call.integer(3) : 0;
  if (start.number() < 0) {
    start = {shapes::max((size + start).expr(), Expr(0)), std::max<int64_t>((size + start).hint(), 0)};
  }
  const Expr from_start = variable(dim) - start.expr();
  std::vector<Condition> conditions{{variable(dim), start, start + (length - 1) * step + 1}};
  std::vector<Expr> map = identity(into.whole.rank());
  map[dim] = from_start;
  if (step != 1) {
    conditions.push_back({shapes::mod(from_start, Expr(step)), 0, 1});
    map[dim] = shapes::floor_div(from_start, Expr(step));
  }
  return into.set_result(call, conditions, std::move(map));
}

/// (self, src, dim, index) or (grad, sizes, dim, index).
template <bool gradient>
bool select_scatter(Call& call) {
  const Into into(call, gradient);
  const int64_t dim = Call::wrap(call.integer(2), into.whole.rank());
  Size index = call.integer(3);
  if (index.number() < 0) index = index + into.whole.sizes()[dim];
  std::vector<Expr> map = identity(into.whole.rank());
  map.erase(map.begin() + dim);
  return into.set_result(call, {{variable(dim), index, index + 1}}, std::move(map));
}

/// (self, src, offset, dim1, dim2) or (grad, sizes, offset, dim1, dim2).
template <bool gradient>
bool diagonal_scatter(Call& call) {
  const Into into(call, gradient);
  const int64_t offset = call.integer(2), rank = into.whole.rank();
  const int64_t first = Call::wrap(call.integer(3), rank), second = Call::wrap(call.integer(4), rank);
  const Size length = into.part.sizes().back();
  if (length.is_static() && length.number() == 0) return call.set_result(into.whole);
  // Element (i + max(-offset, 0), i + max(offset, 0)).
  const int64_t down = std::max<int64_t>(-offset, 0), right = std::max<int64_t>(offset, 0);
  std::vector<Expr> map;
  for (int64_t i = 0; i < rank; ++i) {
    if (i != first && i != second) map.push_back(variable(i));
  }
  map.push_back(variable(first) - Expr(down));
  return into.set_result(
      call,
      {{variable(first), down, length + down}, {variable(second) - variable(first), right - down, right - down + 1}},
      std::move(map));
}

template <bool upper>
bool triangle(Call& call) {
  const T x = call.raw(0);
  const Expr distance = variable(x.rank() - 1) - variable(x.rank() - 2);
  const T at = call.index(distance, x.sizes());
  const auto diagonal = static_cast<double>(call.integer(1));
  const T zero = broadcast(x.number(0), x.sizes());
  return call.set_result(select(upper ? at >= diagonal : at <= diagonal, x, zero));
}

bool flip(Call& call) {
  const T x = call.raw(0);
  std::vector<Expr> map = identity(x.rank());
  for (const int64_t given : call.integers(1)) {
    const int64_t dim = Call::wrap(given, x.rank());
    if (x.rank()) map[dim] = x.sizes()[dim].expr() - 1 - variable(dim);
  }
  return call.set_result(view(x, std::move(map), x.sizes()));
}

bool roll(Call& call) {
  const T x = call.raw(0);
  const auto shifts = call.integers(1), dims = call.integers(2);
  if (dims.size() != shifts.size() || x.dag->may_be_empty(x.sizes())) return false;
  std::vector<Expr> map = identity(x.rank());
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = Call::wrap(dims[i], x.rank());
    map[dim] = shapes::mod(map[dim] - Expr(shifts[i]), x.sizes()[dim].expr());
  }
  return call.set_result(view(x, std::move(map), x.sizes()));
}

bool repeat(Call& call) {
  const T x = call.raw(0);
  const Sizes to = call.result_sizes();
  if (x.dag->may_be_empty(x.sizes())) return false;
  std::vector<Expr> map;
  const auto added = static_cast<int64_t>(to.size()) - x.rank();
  for (int64_t i = 0; i < x.rank(); ++i) map.push_back(shapes::mod(variable(added + i), x.sizes()[i].expr()));
  return call.set_result(view(x, std::move(map), to));
}

/// Reshape of a value: a view where eager has one, a copy where not.
bool reshape_rule(Call& call) { return call.set_reshaped_result(call.raw(0)); }

/// start + step * position, in eager's accumulation dtype. `first` is the position of start, -1 without one.
bool arange_from(Call& call, int first, int last_of_numbers) {
  const Dtype dtype = call.compute();
  const bool exact = !loops::is_float(dtype);
  const bool has_step = call.at("step") >= 0;
  if (dtype == Dtype::Bool) return false;  // eager raises
  for (int i = 0; i <= last_of_numbers; ++i) {
    if (exact && !call.is_integral(i)) return false;
  }
  const T position = call.index(variable(0), call.result_sizes());
  const Dtype wide = exact ? Dtype::I64 : Dtype::F64;
  const T start = first < 0 ? call.number(wide, 0) : call.in(first, wide);
  const T step = has_step ? call.in(call.at("step"), wide) : call.number(wide, 1);
  return call.set_result((start + position.to(wide) * step).to(dtype));
}

/// (weight, indices, padding_idx, ...).
bool embedding(Call& call) {
  const T weight = call.indexable(0);
  T rows = call.raw(1).to(Dtype::I64);
  const Size size = weight.sizes()[0];
  // Eager does not wrap negative indices here: they are as wrong as those past the end.
  rows = select(rows < 0.0, rows.number(size), rows);
  const Sizes to = call.result_sizes();
  // A kernel without elements looks nothing up; eager checks the indices.
  if (weight.dag->may_be_empty({to.back()})) return false;
  std::vector<Expr> map{Expr::value(0), variable(static_cast<int64_t>(to.size()) - 1)};
  Sizes spread = rows.sizes();
  spread.push_back(1);
  const T at = broadcast(reshape(rows, spread), to);
  return call.set_result({weight.dag, weight.dag->gather(weight.id, {at.id}, std::move(map), {size, kInSelf, 0}, to)});
}

/// (self, dim, index) with an index vector.
bool index_select(Call& call) {
  const int64_t rank = static_cast<int64_t>(call.meta(0).sizes.size());
  if (rank == 0 || call.meta(2).sizes.size() != 1) return false;
  const T data = call.indexable(0);
  const int64_t dim = Call::wrap(call.integer(1), rank);
  const Size size = data.sizes()[dim];
  T rows = call.raw(2).to(Dtype::I64);
  rows = select(rows < 0.0, rows.number(size), rows);
  const Sizes to = call.result_sizes();
  Sizes others = to;
  others.erase(others.begin() + dim);
  if (data.dag->may_be_empty(others)) return false;
  std::vector<Expr> map = identity(rank);
  map[dim] = Expr::value(0);
  const T at = view(rows, {variable(dim)}, to);
  return call.set_result({data.dag, data.dag->gather(data.id, {at.id}, std::move(map), {size, kInSelf, dim}, to)});
}

/// (self, dim, index, sparse_grad).
bool gather(Call& call) {
  const int64_t rank = static_cast<int64_t>(call.meta(0).sizes.size());
  if (rank == 0 || static_cast<int64_t>(call.meta(2).sizes.size()) != rank) return false;
  const T data = call.indexable(0);
  const int64_t dim = Call::wrap(call.integer(1), rank);
  const Size size = data.sizes()[dim];
  T at = call.raw(2).to(Dtype::I64);
  at = select(at < 0.0, at.number(size), at);
  std::vector<Expr> map = identity(rank);
  map[dim] = Expr::value(0);
  return call.set_result(
      {data.dag, data.dag->gather(data.id, {at.id}, std::move(map), {size, kNamed, dim}, call.result_sizes())});
}

/// The elements of a tensor that indices for some of its dimensions, broadcast against each other, name.
class Indexed {
 public:
  /// `given`: by dimension of a tensor of `sizes`; `dag`'s.
  Indexed(Call& call, const std::vector<graph::ValueId>& given, Sizes sizes)
      : dag_(call.lowering().dag), sizes_(std::move(sizes)) {
    for (size_t dim = 0; dim < given.size(); ++dim) {
      if (given[dim] == graph::kNoValue) continue;
      const c10::ScalarType dtype = call.lowering().meta(given[dim]).dtype;
      if (dtype != c10::kLong && dtype != c10::kInt) throw Declined{};  // masks
      indices_.push_back(T{&dag_, call.lowering().node_of(given[dim])}.to(Dtype::I64));
      dims_.push_back(static_cast<int64_t>(dim));
    }
    if (dims_.empty()) throw Declined{};
    for (const T& index : indices_) rank_ = std::max(rank_, index.rank());
    // Dimensions side by side are replaced where they stand, others move to the front.
    const bool adjacent = dims_.back() - dims_.front() + 1 == static_cast<int64_t>(dims_.size());
    first_ = adjacent ? dims_.front() : 0;
  }

  /// Of what is named.
  Sizes sizes() const {
    Sizes common(rank_, Size(1)), result;
    for (const T& index : indices_) {
      for (int64_t i = 0; i < index.rank(); ++i) {
        Size& size = common[rank_ - index.rank() + i];
        if (size == 1) size = index.sizes()[i];
        if (index.sizes()[i] != 1 && index.sizes()[i] != size) throw Declined{};
      }
    }
    for (int64_t dim = 0; dim < static_cast<int64_t>(sizes_.size()); ++dim) {
      if (static_cast<int64_t>(result.size()) == first_) result.insert(result.end(), common.begin(), common.end());
      if (std::ranges::find(dims_, dim) == dims_.end()) result.push_back(sizes_[dim]);
    }
    if (static_cast<int64_t>(result.size()) == first_) result.insert(result.end(), common.begin(), common.end());
    return result;
  }

  /// The dimensions that are not indexed.
  Sizes rows() const {
    Sizes result;
    for (int64_t dim = 0; dim < static_cast<int64_t>(sizes_.size()); ++dim) {
      if (std::ranges::find(dims_, dim) == dims_.end()) result.push_back(sizes_[dim]);
    }
    return result;
  }

  /// Where each element of what is named, which has sizes `to`, stands.
  struct Places {
    std::vector<NodeId> indices;
    std::vector<Expr> map;
    Sizes checks;
  };
  Places places(const Sizes& to) const {
    Places result;
    int64_t next = 0;  // the dimension of `to` for the next one that is not indexed
    for (int64_t dim = 0; dim < static_cast<int64_t>(sizes_.size()); ++dim) {
      const auto found = std::ranges::find(dims_, dim);
      if (found == dims_.end()) {
        if (next == first_) next += rank_;
        result.map.push_back(variable(next++));
        continue;
      }
      const T& index = indices_[found - dims_.begin()];
      result.map.push_back(Expr::value(static_cast<int32_t>(result.indices.size())));
      result.checks.insert(result.checks.end(), {sizes_[dim], kNamed, dim});
      std::vector<Expr> at;
      for (int64_t i = 0; i < index.rank(); ++i) {
        at.push_back(index.sizes()[i] == 1 ? Expr(0) : variable(first_ + rank_ - index.rank() + i));
      }
      result.indices.push_back(view(index, std::move(at), to).id);
    }
    return result;
  }

 private:
  Dag& dag_;
  const Sizes sizes_;
  std::vector<T> indices_;
  std::vector<int64_t> dims_;
  int64_t rank_ = 0, first_ = 0;  // of the indices together, and where they stand among the dimensions of what is named
};

/// (self, indices).
bool index_tensor(Call& call) {
  const Indexed named(call, call.values(1), call.sizes(0));
  const T data = call.indexable(0);
  const Sizes to = call.result_sizes();
  if (data.dag->may_be_empty(to)) return false;
  Indexed::Places places = named.places(to);
  return call.set_result(
      {data.dag, data.dag->gather(data.id, places.indices, std::move(places.map), std::move(places.checks), to)});
}

// -- adding at computed places, one element after another, as eager does
// -----------------------------------------------------------------------
// What eager raises for, and nothing before has asked (sizes are symbols, whose rules give sizes alone), is left to it:
// sizes have to be known to fit.

/// Each of `sizes` is known to be at most that of `most`, but for dimension `except`.
bool are_within(const Dag& dag, const Sizes& sizes, const Sizes& most, int64_t except = -1) {
  if (sizes.size() != most.size()) return false;
  shapes::IndexKnowledge known([](int32_t) -> const Size* { return nullptr; }, dag.symbols);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (static_cast<int64_t>(i) != except && !known.is_natural(most[i].expr() - sizes[i].expr())) return false;
  }
  return true;
}

bool spreads_to(const Sizes& sizes, const Sizes& to) {
  if (sizes.size() > to.size()) return false;
  const size_t added = to.size() - sizes.size();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1 && sizes[i] != to[added + i]) return false;
  }
  return true;
}

/// Memory has no sum of bools; and where the `rows` that are added have no element, no index would be looked at.
bool can_add(Call& call, const Sizes& rows) {
  return call.result_meta().dtype != c10::kBool && !call.lowering().dag.may_be_empty(rows);
}

/// Eager sums what these add to in float, whatever the dtype, and rounds once; in memory each sum is rounded.
bool is_summed_exactly(Call& call) {
  const c10::ScalarType dtype = call.result_meta().dtype;
  return dtype != c10::kBFloat16 && dtype != c10::kHalf;
}

/// Indices as they are checked where negative ones are as wrong as those past the end.
T from_zero(T index, const Size& size) {
  index = index.to(Dtype::I64);
  return select(index < 0.0, index.number(size), index);
}

/// (self, indices, values, accumulate).
bool index_put(Call& call) {
  if (!call.flag(3)) return false;
  const Indexed named(call, call.values(1), call.sizes(0));
  const Sizes to = named.sizes();
  if (!can_add(call, named.rows()) || !spreads_to(call.sizes(2), to)) return false;
  Indexed::Places places = named.places(to);
  return call.set_scattered_result(call.raw(0), broadcast(call.in(2), to), places.indices, std::move(places.map),
                                   std::move(places.checks));
}

/// (self, dim, index, source, alpha) with an index vector.
bool index_add(Call& call) {
  const Sizes to = call.result_sizes(), added = call.sizes(3);
  const auto rank = static_cast<int64_t>(to.size());
  if (rank == 0 || !is_summed_exactly(call)) return false;
  const int64_t dim = Call::wrap(call.integer(1), rank);
  Sizes fitting = to, row = to;
  fitting[dim] = count(call.sizes(2));
  row.erase(row.begin() + dim);
  if (call.meta(2).sizes.size() != 1 || added != fitting || !can_add(call, row)) return false;
  const T rows = from_zero(call.raw(2), to[dim]);
  T value = call.in(3);
  if (call.number(4) != 1) value = value * call.in(4);
  std::vector<Expr> map = identity(rank);
  map[dim] = Expr::value(0);
  return call.set_scattered_result(call.raw(0), value, {view(rows, {variable(dim)}, added).id}, std::move(map),
                                   {to[dim], kInSelf, dim});
}

/// (self, dim, index, src): as many elements of src as index has.
bool scatter_add(Call& call) {
  const Sizes to = call.result_sizes(), added = call.sizes(2);
  const auto rank = static_cast<int64_t>(to.size());
  if (rank == 0 || !can_add(call, {}) || !is_summed_exactly(call)) return false;
  const int64_t dim = Call::wrap(call.integer(1), rank);
  const Dag& dag = call.lowering().dag;
  if (!are_within(dag, added, call.sizes(3)) || !are_within(dag, added, to, dim)) return false;
  std::vector<Expr> map = identity(rank);
  map[dim] = Expr::value(0);
  return call.set_scattered_result(call.raw(0), view(call.in(3), identity(rank), added),
                                   {from_zero(call.raw(2), to[dim]).id}, std::move(map), {to[dim], kNamed, dim});
}

/// (grad, indices, num_weights, padding_idx, scale_grad_by_freq).
bool embedding_dense_backward(Call& call) {
  const Sizes to = call.result_sizes(), added = call.sizes(0);
  Sizes fitting = call.sizes(1);
  fitting.push_back(to[1]);
  if (call.flag(4) || !can_add(call, {to[1]}) || added != fitting) return false;
  const T indices = call.raw(1).to(Dtype::I64);
  const auto spread = [&](T index) {
    Sizes sizes = index.sizes();
    sizes.push_back(1);
    return broadcast(reshape(index, sizes), added);
  };
  T value = call.in(0);
  const T zero = value.number(0);
  if (const int64_t padding = call.integer(3); padding >= 0) {  // nothing is added to the row that stands for nothing
    const T counts = indices != static_cast<double>(padding);
    value = select(spread(counts), value, broadcast(zero, added));
  }
  return call.set_scattered_result(zero, value, {spread(from_zero(indices, to[0])).id},
                                   {Expr::value(0), variable(static_cast<int64_t>(added.size()) - 1)},
                                   {to[0], kInSelf, 0});
}

/// (self, target, weight, reduction, ignore_index) -> output, total_weight.
bool nll_loss(Call& call) {
  const int64_t reduction = call.integer(3), ignored = call.integer(4);
  if (call.given(2) || reduction == 0 || call.meta(0).sizes.size() != 2 || call.meta(1).sizes.size() != 1) return false;
  const T x = call.in(0);
  const Size classes = x.sizes()[1];
  const T target = call.raw(1).to(Dtype::I64);
  const T valid = target != static_cast<double>(ignored);
  T at = select(valid, target, broadcast(target.number(0), target.sizes()));
  at = select(at < 0.0, broadcast(at.number(classes), at.sizes()), at);
  const T picked{x.dag, x.dag->gather(x.id, {at.id}, {variable(0), Expr::value(0)}, {classes, kTarget, 1}, at.sizes())};
  const T losses = select(valid, -picked, broadcast(x.number(0), at.sizes()));
  const T sum = reduce(Op::ReduceSum, losses, {0}), total = reduce(Op::ReduceSum, valid.to(x.dtype()), {0});
  call.set_reshaped_result(reduction == 1 ? sum / total : sum);
  if (call.wanted(1)) call.set_reshaped_result(total, 1);
  return true;
}

bool arange_to(Call& call) { return arange_from(call, -1, 0); }

bool arange_between(Call& call) { return arange_from(call, 0, 1); }

bool arange_by(Call& call) { return arange_from(call, 0, 2); }

}  // namespace

std::span<const RuleRow> index_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_lowering_index(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::lower
