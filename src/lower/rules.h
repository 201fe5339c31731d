// Rules: what an operator computes, as an expression over its operands. One row per operator, in families; an operator
// without a row (or whose row declines the case) is called as eager calls it.
//
//     {"aten::silu", [](Call& call) { const T x = call.in(0); return call.set_result(x / (1.0 + exp(-x))); }}
//
// `in` gives an operand in the dtype in which eager computes (float for bfloat16); `set_result` rounds to the result's
// dtype.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "graph/graph.h"
#include "graph/symbols.h"
#include "lower/dag.h"

namespace magneto::lower {

/// The index along a dimension.
inline Expr variable(int64_t dim) { return Expr::variable(static_cast<int32_t>(dim)); }

/// A tensor in a rule. Arithmetic makes nodes; numbers take the dtype of the other operand.
struct T {
  Dag* dag = nullptr;
  NodeId id = kNoNode;

  const Node& node() const { return (*dag)[id]; }
  /// A copy: making nodes moves the others.
  Sizes sizes() const { return node().sizes; }
  Dtype dtype() const { return node().dtype; }
  int64_t rank() const { return static_cast<int64_t>(node().sizes.size()); }
  T number(double value) const { return {dag, dag->number(dtype(), value)}; }
  /// The number of elements, a length and the like.
  T number(const Size& size) const {
    if (size.is_static()) return number(static_cast<double>(size.number()));
    return {dag, dag->cast(dtype(), dag->index(size.expr(), {}))};
  }
  T to(Dtype dtype) const { return {dag, dag->cast(dtype, id)}; }
  T apply(Op op) const { return {dag, dag->math(op, {id})}; }
  T apply(Op op, T other) const { return {dag, dag->math(op, {id, other.id})}; }
  T apply(Op op, double other) const { return apply(op, number(other)); }
};

// X(function, op): two operands, both tensors or one of them a number.
#define MAGNETO_BINARY(X) \
  X(operator+, Add)       \
  X(operator-, Sub)       \
  X(operator*, Mul)       \
  X(operator/, Div)       \
  X(operator==, Eq)       \
  X(operator!=, Ne)       \
  X(operator<, Lt)        \
  X(operator<=, Le)       \
  X(operator>, Gt)        \
  X(operator>=, Ge)       \
  X(operator&, And) X(operator|, Or) X(minimum, Min) X(maximum, Max) X(power, Pow) X(erf_from, ErfFrom)
#define X(function, op)                                           \
  inline T function(T a, T b) { return a.apply(Op::op, b); }      \
  inline T function(T a, double b) { return a.apply(Op::op, b); } \
  inline T function(double a, T b) { return b.number(a).apply(Op::op, b); }
MAGNETO_BINARY(X)
#undef X
inline T operator-(T a) { return a.apply(Op::Neg); }
inline T operator!(T a) { return a.apply(Op::Not); }
#define MAGNETO_UNARY(X) \
  X(exp, Exp)            \
  X(log, Log)            \
  X(sqrt, Sqrt)          \
  X(rsqrt, Rsqrt)        \
  X(tanh, Tanh) X(erf, Erf) X(sigmoid, Sigmoid) X(log1p, Log1p) X(expm1, Expm1) X(abs, Abs) X(reciprocal, Reciprocal)
#define X(function, op) \
  inline T function(T a) { return a.apply(Op::op); }
MAGNETO_UNARY(X)
#undef X
inline T select(T condition, T a, T b) { return {a.dag, a.dag->math(Op::Select, {condition.id, a.id, b.id})}; }
inline T reduce(Op op, T a, const std::vector<int64_t>& dims) { return {a.dag, a.dag->reduce(op, a.id, dims)}; }
inline T reshape(T a, const Sizes& sizes) { return {a.dag, a.dag->reshape(a.id, sizes)}; }
inline T broadcast(T a, const Sizes& sizes) { return {a.dag, a.dag->broadcast(a.id, sizes)}; }

class Lowering;

/// A part of a tensor that is put together in memory: where the node's elements stand.
struct Piece {
  NodeId node;
  Sizes strides;
  Size offset;
};

/// Thrown where a rule finds that the case is not for it.
struct Declined {};

/// One call of an operator, as its rule sees it.
class Call {
 public:
  Call(Lowering& lowering, const graph::AtenNode& node) : lowering_(lowering), node_(node) {}

  // -- arguments, by position in the schema
  // ------------------------------------------------------------------------------
  // What has to be a number and is a dynamic size throws UnknownSize: the rule declines. So it
  // does for a number that the dtype of the result does not hold (Declined): eager raises, or has its own way.
  /// The position of the argument `name`; -1 without one.
  int at(std::string_view name) const;
  /// Not None, not an absent tensor, not missing.
  bool given(int i) const;
  bool is_tensor(int i) const;
  double number(int i) const;
  /// The number is an integer or a bool.
  bool is_integral(int i) const;
  int64_t integer(int i) const;
  bool flag(int i) const;
  std::vector<int64_t> integers(int i) const;
  std::string text(int i) const;
  /// A number, or one that follows from sizes.
  Size size(int i) const;
  Sizes size_list(int i) const;
  const graph::TensorMeta& meta(int i) const;
  /// Of a result that somebody uses.
  const graph::TensorMeta& result_meta(size_t k = 0) const;
  /// Of the first of these.
  const graph::TensorMeta& read_result_meta() const;
  Sizes sizes(int i) const { return graph::sizes_of(meta(i)); }
  Sizes result_sizes(size_t k = 0) const { return graph::sizes_of(result_meta(k)); }
  Sizes result_strides(size_t k = 0) const { return graph::strides_of(result_meta(k)); }
  size_t result_count() const { return node_.results.size(); }
  /// Somebody uses result k.
  bool wanted(size_t k) const { return k < node_.results.size() && node_.results[k] != graph::kNoValue; }
  /// A dimension, negative ones counted from the end of `rank` dimensions.
  static int64_t wrap(int64_t dim, int64_t rank) { return dim < 0 ? dim + std::max<int64_t>(rank, 1) : dim; }

  // -- operands as tensors
  // ----------------------------------------------------------------------------------------------
  /// Argument `i`, a tensor or a number, in `dtype`; by default the dtype in which the result is computed.
  T in(int i, std::optional<Dtype> dtype = std::nullopt);
  /// As it is.
  T raw(int i);
  std::vector<T> list(int i);
  T number(Dtype dtype, double value) const;
  T index(Expr expr, Sizes sizes) const;
  /// Argument `i` to be read at computed indices: in memory if it would be computed more often than it has elements.
  T indexable(int i);
  /// The tensor argument `i`, by its number in the graph.
  graph::ValueId value(int i) const { return std::get<graph::ValueId>(node_.args[i]); }
  /// The values of a list argument, absent ones included.
  std::vector<graph::ValueId> values(int i) const { return std::get<std::vector<graph::ValueId>>(node_.args[i]); }
  /// The element that argument `i`, a number or a tensor of one element, becomes in `dtype`: eager takes its number.
  T element(int i, c10::ScalarType dtype);
  /// The dtype in which result 0 is computed.
  Dtype compute() const;
  /// What arguments `a` and `b` (tensors or numbers) promote to, as a dtype of values.
  std::optional<c10::ScalarType> promoted(int a, int b) const;

  // -- results
  // -----------------------------------------------------------------------------------------------------------
  /// Result `k` is `value`, rounded to its dtype. True, so that rules can end with it.
  bool set_result(T value, size_t k = 0);
  /// The same elements in row-major order, under the result's sizes.
  bool set_reshaped_result(T value, size_t k = 0) { return set_result(reshape(value, result_sizes(k)), k); }

  /// Result 0 is put together in memory: each piece is written where it stands, by the kernel that computes it.
  bool set_assembled_result(const std::vector<Piece>& pieces);

  /// Result 0 is `base` with the elements of `value` added where `map` says; indices and checks as of Dag::gather.
  bool set_scattered_result(T base, T value, const std::vector<NodeId>& indices, std::vector<Expr> map, Sizes checks);

  Lowering& lowering() { return lowering_; }

 private:
  Lowering& lowering_;
  const graph::AtenNode& node_;
};

/// False: this case is not for the rule.
using Rule = bool (*)(Call& call);
/// What is generated for the call has eager's bits, whatever it is fused with. tests/ops/test_exact_rows.py shows it.
using Exactness = bool (*)(Call& call);
struct RuleRow {
  std::string_view op;
  Rule rule;
  /// Null: never, as far as anybody knows.
  Exactness is_exact = nullptr;
};

// -- the last column of the rows
bool exact(Call& call);
/// Of a sum or a difference: eager rounds once where it multiplies by alpha, in its vectors and not behind them.
bool exact_without_factor(Call& call);
bool exact_on_integers(Call& call);
/// Of a power.
bool exact_square(Call& call);

// X(family): `family_rules()` in rules_<family>.cpp.
#define MAGNETO_LOWERING_FAMILIES(X) X(pointwise) X(reduction) X(index) X(matmul) X(backward) X(tiles)
#define X(family) std::span<const RuleRow> family##_rules();
MAGNETO_LOWERING_FAMILIES(X)
#undef X

/// The row of an operator, or null.
const RuleRow* find_row(const c10::OperatorHandle& op);
/// The operators whose generated code has eager's bits, in some calls at least.
std::vector<std::string> exact_operators();

/// The loop dtype of a PyTorch dtype; nothing for those that kernels do not know.
std::optional<Dtype> loop_dtype(c10::ScalarType dtype);

}  // namespace magneto::lower
