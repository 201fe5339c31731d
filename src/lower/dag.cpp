#include "lower/dag.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

namespace magneto::lower {

Size count(const Sizes& sizes) {
  Size elements = 1;
  for (const Size& size : sizes) elements *= size;
  return elements;
}

namespace {

bool same(const Node& a, const Node& b) {
  return a.kind == b.kind && a.op == b.op && a.dtype == b.dtype && a.sizes == b.sizes && a.operands == b.operands &&
         a.map == b.map && a.data == b.data && std::bit_cast<int64_t>(a.number) == std::bit_cast<int64_t>(b.number);
}

size_t hash(const Node& node) {
  size_t result =
      static_cast<size_t>(node.kind) * 31 + static_cast<size_t>(node.op) * 7 + static_cast<size_t>(node.dtype);
  const auto mix = [&](size_t value) { result = (result ^ value) * 0x9e3779b97f4a7c15ull + (result >> 29); };
  const auto mix_size = [&](const Size& size) {
    mix(size.is_static() ? static_cast<size_t>(size.hint()) : reinterpret_cast<size_t>(size.identity()));
  };
  for (const Size& size : node.sizes) mix_size(size);
  for (const NodeId id : node.operands) mix(static_cast<size_t>(id) + 1000003);
  for (const Expr expr : node.map) mix(reinterpret_cast<size_t>(expr.identity()));
  for (const Size& item : node.data) mix_size(item);
  mix(std::bit_cast<size_t>(node.number));
  return result;
}

bool commutes(Op op) {
  switch (op) {
    case Op::Add:
    case Op::Mul:
    case Op::And:
    case Op::Or:
    case Op::Xor:
    case Op::Eq:
    case Op::Ne:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::optional<bool> decided(const Condition& condition, shapes::IndexKnowledge known) {
  const Expr expr = known.simplified(condition.expr);
  if (known.is_natural(condition.low.expr() - 1 - expr) || known.is_natural(expr - condition.high.expr())) return false;
  if (known.is_natural(expr - condition.low.expr()) && known.is_natural(condition.high.expr() - 1 - expr)) return true;
  return std::nullopt;
}

NodeId Dag::add(Node node) {
  const size_t key = hash(node);
  const auto [first, last] = known_.equal_range(key);
  for (auto entry = first; entry != last; ++entry) {
    if (same(nodes_[entry->second], node)) return entry->second;
  }
  const NodeId id = size();
  nodes_.push_back(std::move(node));
  known_.emplace(key, id);
  return id;
}

Expr Dag::simplify(Expr expr, const Sizes& sizes) const {
  if (expr.is_constant() || expr.kind() == shapes::ExprKind::Variable) {
    if (!expr.is_constant() && static_cast<size_t>(expr.id()) < sizes.size() && sizes[expr.id()] == 1) return Expr(0);
    return expr;
  }
  const shapes::IndexKnowledge::Extent extent = [&](int32_t variable) {
    return static_cast<size_t>(variable) < sizes.size() ? &sizes[variable] : nullptr;
  };
  return shapes::IndexKnowledge(extent, symbols).simplified(expr);
}

bool Dag::may_be_empty(const Sizes& sizes) const {
  return std::ranges::any_of(sizes, [&](const Size& size) {
    if (size.is_static()) return size == 0;
    return shapes::range_of(size.expr(), [&](Expr symbol) { return symbols.range(symbol); }).low < 1;
  });
}

NodeId Dag::leaf(int32_t buffer, Dtype value_dtype, Sizes sizes, const Sizes& strides, Size offset) {
  Node node{NodeKind::Leaf, Op::Load, value_dtype};
  node.data = {buffer, offset};
  for (size_t i = 0; i < sizes.size(); ++i) node.data.push_back(sizes[i] == 1 ? Size(0) : strides[i]);
  node.sizes = std::move(sizes);
  return add(std::move(node));
}

NodeId Dag::number(Dtype dtype, double value, Sizes sizes) {
  if (dtype == Dtype::Bool) return integer(dtype, value != 0, std::move(sizes));
  if (!loops::is_float(dtype)) return integer(dtype, static_cast<int64_t>(value), std::move(sizes));
  Node node{NodeKind::Number, Op::Constant, dtype, std::move(sizes)};
  node.number = dtype == Dtype::F32 ? static_cast<double>(static_cast<float>(value)) : value;
  // One NaN is enough.
  if (node.number != node.number) node.number = std::nan("");
  return add(std::move(node));
}

NodeId Dag::integer(Dtype dtype, int64_t value, Sizes sizes) {
  if (loops::is_float(dtype)) return number(dtype, static_cast<double>(value), std::move(sizes));
  Node node{NodeKind::Number, Op::Constant, dtype, std::move(sizes)};
  switch (dtype) {
    case Dtype::Bool:
      value = value != 0;
      break;
    case Dtype::I8:
      value = int64_t{static_cast<int8_t>(value)};
      break;
    case Dtype::U8:
      value = static_cast<uint8_t>(value);
      break;
    case Dtype::I16:
      value = static_cast<int16_t>(value);
      break;
    case Dtype::I32:
      value = static_cast<int32_t>(value);
      break;
    default:
      break;
  }
  node.data = {value};
  return add(std::move(node));
}

NodeId Dag::index(Expr expr, Sizes sizes) {
  expr = simplify(expr, sizes);
  if (expr.is_constant()) return integer(Dtype::I64, expr.number(), std::move(sizes));
  Node node{NodeKind::Index, Op::Index, Dtype::I64, std::move(sizes)};
  node.map = {expr};
  return add(std::move(node));
}

NodeId Dag::cast(Dtype dtype, NodeId operand) {
  const Node& from = nodes_[operand];
  if (from.dtype == dtype) return operand;
  if (from.kind == NodeKind::Number) {
    const bool to_float = loops::is_float(dtype), was_float = loops::is_float(from.dtype);
    if (to_float)
      return number(dtype, was_float ? from.number : static_cast<double>(from.data[0].number()), from.sizes);
    if (!was_float) return integer(dtype, from.data[0].number(), from.sizes);
    if (dtype == Dtype::Bool) return integer(dtype, from.number != 0, from.sizes);
    // Out of range is the CPU's affair: left to it.
    if (std::abs(from.number) < 1e9) return integer(dtype, static_cast<int64_t>(from.number), from.sizes);
  }
  // Widening first changes nothing: bool -> i64 -> f32, f32 -> f64 -> f32.
  if (from.kind == NodeKind::Math && from.op == Op::Cast) {
    const NodeId inner = from.operands[0];
    const Dtype first = nodes_[inner].dtype, middle = from.dtype;
    const bool exact = first == Dtype::Bool || (first == Dtype::F32 && middle == Dtype::F64) ||
                       (!loops::is_float(first) && !loops::is_float(middle) && middle == Dtype::I64);
    if (exact && middle != Dtype::Bool) return cast(dtype, inner);
  }
  Node node{NodeKind::Math, Op::Cast, dtype, from.sizes, {operand}};
  return add(std::move(node));
}

NodeId Dag::broadcast(NodeId operand, const Sizes& sizes) {
  const Node& node = nodes_[operand];
  if (node.sizes == sizes) return operand;
  if (node.sizes.size() > sizes.size()) throw std::logic_error("broadcast to fewer dimensions");
  const size_t added = sizes.size() - node.sizes.size();
  std::vector<Expr> map;
  for (size_t i = 0; i < node.sizes.size(); ++i) {
    const Size &from = node.sizes[i], &to = sizes[added + i];
    if (from != to && from != 1) {
      if (from.is_static() && to.is_static()) throw std::logic_error("sizes do not broadcast");
      throw shapes::UnknownSize("whether " + text(from) + " is " + text(to));
    }
    map.push_back(from == 1 ? Expr(0) : Expr::variable(static_cast<int32_t>(added + i)));
  }
  return view(operand, std::move(map), sizes);
}

namespace {

/// An index over one node as an index over the node that `map` leads to.
Expr through(Expr expr, const std::vector<Expr>& map) {
  return shapes::substitute(expr, [&](Expr leaf) -> std::optional<Expr> {
    if (leaf.kind() != shapes::ExprKind::Variable) return std::nullopt;
    return map[leaf.id()];
  });
}

/// So many writes of other parts a view looks past, so that the cost of many reads behind many writes stays linear.
constexpr int kMostWritesPassed = 64;

}  // namespace

std::optional<bool> Dag::decided(const Condition& condition, const Sizes& sizes) const {
  const shapes::IndexKnowledge::Extent extent = [&](int32_t variable) {
    return static_cast<size_t>(variable) < sizes.size() ? &sizes[variable] : nullptr;
  };
  return lower::decided(condition, shapes::IndexKnowledge(extent, symbols));
}

NodeId Dag::shown(const Node& guard, const std::vector<Expr>& map, const Sizes& sizes) const {
  bool all = true;
  for (size_t k = 0; k < guard.map.size(); ++k) {
    const auto holds = decided({through(guard.map[k], map), guard.data[2 * k], guard.data[2 * k + 1]}, sizes);
    if (holds && !*holds) return guard.operands[1];
    all = all && holds;
  }
  return all ? guard.operands[0] : kNoNode;
}

NodeId Dag::view(NodeId operand, std::vector<Expr> map, Sizes sizes) {
  for (size_t i = 0; i < map.size(); ++i) {
    map[i] = nodes_[operand].sizes[i] == 1 ? Expr(0) : simplify(map[i], sizes);
  }
  // Of a tensor with a part put in, what lies in that part, or beside it.
  for (int passed = 0; passed < kMostWritesPassed && nodes_[operand].kind == NodeKind::Guard; ++passed) {
    const NodeId part = shown(nodes_[operand], map, sizes);
    if (part == kNoNode) break;
    operand = part;
  }
  const Node source = nodes_[operand];
  bool identity = source.sizes == sizes;
  for (size_t i = 0; i < map.size(); ++i) {
    identity = identity && (source.sizes[i] == 1 || map[i] == Expr::variable(static_cast<int32_t>(i)));
  }
  if (identity) return operand;
  switch (source.kind) {
    case NodeKind::Number: {
      Node node = source;
      node.sizes = std::move(sizes);
      return add(std::move(node));
    }
    case NodeKind::Index:
      return index(through(source.map[0], map), std::move(sizes));
    case NodeKind::View: {
      std::vector<Expr> composed;
      for (const Expr expr : source.map) composed.push_back(through(expr, map));
      return view(source.operands[0], std::move(composed), std::move(sizes));
    }
    case NodeKind::Leaf: {
      // Still a strided leaf if each index is linear in the variables.
      Sizes strides(sizes.size(), 0);
      Expr position = source.data[1].expr();
      for (size_t i = 0; i < map.size(); ++i) position += map[i] * source.data[2 + i].expr();
      position = simplify(position, sizes);
      bool strided = true;
      for (size_t i = 0; strided && i < sizes.size(); ++i) {
        const auto linear = shapes::linear_in(position, Expr::variable(static_cast<int32_t>(i)));
        strided = linear && !shapes::has_variable(linear->coefficient);
        if (!strided) break;
        strides[i] = symbols.size(linear->coefficient);
        position = linear->rest;
      }
      if (strided && !shapes::has_variable(position)) {
        return leaf(source.buffer(), source.dtype, std::move(sizes), strides, symbols.size(position));
      }
      break;
    }
    default:
      break;
  }
  Node node{NodeKind::View, Op::Load, source.dtype, std::move(sizes), {operand}, std::move(map)};
  return add(std::move(node));
}

std::vector<Expr> delinearise(Expr position, const Sizes& sizes, const Sizes& strides) {
  const auto is_one = [&](size_t i) { return sizes[i] == 1 || sizes[i] == 0; };
  // The dimension with the greatest stride needs no modulo: positions are in range.
  size_t outermost = sizes.size();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!is_one(i) && (outermost == sizes.size() || strides[i].hint() > strides[outermost].hint())) outermost = i;
  }
  std::vector<Expr> index;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Expr expr = is_one(i) ? Expr(0) : shapes::floor_div(position, strides[i].expr());
    index.push_back(i == outermost || is_one(i) ? expr : shapes::mod(expr, sizes[i].expr()));
  }
  return index;
}

bool is_dense(const Sizes& sizes, const Sizes& strides) {
  std::vector<std::pair<Size, Size>> dims;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1) dims.emplace_back(strides[i], sizes[i]);
  }
  std::ranges::stable_sort(dims, {}, [](const auto& dim) { return std::pair(dim.first.hint(), dim.second.hint()); });
  Size expected = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

Sizes row_major(const Sizes& sizes) {
  Sizes strides(sizes.size());
  Size stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    if (sizes[i] != 0) stride *= sizes[i];
  }
  return strides;
}

NodeId Dag::reshape(NodeId operand, const Sizes& sizes) {
  const Sizes from = nodes_[operand].sizes;
  if (from == sizes) return operand;
  Expr position(0);
  const Sizes to_strides = row_major(sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    position += Expr::variable(static_cast<int32_t>(i)) * to_strides[i].expr();
  }
  return view(operand, delinearise(position, from, row_major(from)), sizes);
}

NodeId Dag::gather(NodeId data, const std::vector<NodeId>& indices, std::vector<Expr> map, Sizes checks, Sizes sizes) {
  Node node{NodeKind::Gather, Op::Load,       nodes_[data].dtype, std::move(sizes),
            {data},           std::move(map), std::move(checks)};
  node.operands.insert(node.operands.end(), indices.begin(), indices.end());
  return add(std::move(node));
}

NodeId Dag::scatter(NodeId value, const std::vector<NodeId>& indices, std::vector<Expr> map, Sizes checks) {
  Node node{NodeKind::Scatter, Op::StoreAdd,   nodes_[value].dtype, nodes_[value].sizes,
            {value},           std::move(map), std::move(checks)};
  node.operands.insert(node.operands.end(), indices.begin(), indices.end());
  return add(std::move(node));
}

std::vector<bool> may_collide(const Node& scatter) {
  std::vector<bool> may(scatter.sizes.size(), true);
  for (const Expr expr : scatter.map) {
    if (expr.kind() == shapes::ExprKind::Variable) may[expr.id()] = false;
  }
  return may;
}

NodeId Dag::guard(const std::vector<Condition>& conditions, NodeId inside, NodeId outside) {
  Node node{NodeKind::Guard, Op::Select, nodes_[inside].dtype, nodes_[inside].sizes, {inside, outside}};
  for (const Condition& condition : conditions) {
    const auto holds = decided(condition, node.sizes);
    if (holds && !*holds) return outside;
    if (holds) continue;
    const Expr expr = simplify(condition.expr, node.sizes);
    node.map.push_back(expr);
    node.data.push_back(condition.low);
    node.data.push_back(condition.high);
  }
  if (node.map.empty()) return inside;
  return add(std::move(node));
}

namespace {

/// A reduction of this many elements into this few would run on one thread.
constexpr int64_t kSplitFrom = 1 << 16, kSplitRows = 8, kSplitParts = 32;

/// The greatest divisor of `extent` that makes a good number of parts; 1 if there is none.
int64_t partition(int64_t extent) {
  for (int64_t parts = 2 * kSplitParts; parts >= kSplitParts / 4; --parts) {
    if (extent % parts == 0) return parts;
  }
  return 1;
}

bool splits(Op op) {
  return op == Op::ReduceSum || op == Op::ReduceSumWide || op == Op::ReduceProd || op == Op::ReduceMax ||
         op == Op::ReduceMin || op == Op::ReduceAny || op == Op::ReduceAll;
}

}  // namespace

NodeId Dag::reduce(Op op, NodeId operand, std::vector<int64_t> dims, NodeId index) {
  if (splits(op)) {
    // Few results of many elements: parts first, then the parts' results.
    const Sizes sizes = nodes_[operand].sizes;
    int64_t reduced = 1, widest = dims[0];
    for (const int64_t dim : dims) {
      reduced *= sizes[dim].hint();
      if (sizes[dim].hint() > sizes[widest].hint()) widest = dim;
    }
    const bool few = reduced >= kSplitFrom && count(sizes).hint() / reduced < kSplitRows;
    const int64_t parts = few && sizes[widest].is_static() ? partition(sizes[widest].number()) : 1;
    if (parts > 1) {
      Sizes split = sizes;
      split[widest] = sizes[widest].number() / parts;
      split.insert(split.begin() + widest, parts);
      std::vector<int64_t> inner;
      for (const int64_t dim : dims) inner.push_back(dim >= widest ? dim + 1 : dim);
      const NodeId partial = reduce(op, reshape(operand, split), inner);
      Sizes kept = nodes_[partial].sizes;
      kept.erase(kept.begin() + widest + 1);
      return reduce(of_parts(op), reshape(partial, kept), {widest});
    }
  }
  Node node{NodeKind::Reduce, op, nodes_[operand].dtype, nodes_[operand].sizes, {operand}};
  if (op == Op::ReduceArgmax || op == Op::ReduceArgmin) {
    node.dtype = Dtype::I64;
    node.operands.push_back(index);
  }
  if (op == Op::ReduceSumWide) node.dtype = Dtype::F64;
  for (const int64_t dim : dims) node.sizes[dim] = 1;
  node.data.assign(dims.begin(), dims.end());
  return add(std::move(node));
}

NodeId Dag::extra(NodeId reduce) {
  Node node{NodeKind::Extra, Op::WelfordM2, nodes_[reduce].dtype, nodes_[reduce].sizes, {reduce}};
  return add(std::move(node));
}

NodeId Dag::scan(Op op, NodeId operand, int64_t dim, NodeId index) {
  Node node{NodeKind::Scan, op, nodes_[operand].dtype, nodes_[operand].sizes, {operand}};
  if (op == Op::ScanArgmax || op == Op::ScanArgmin) {
    node.dtype = Dtype::I64;
    node.operands.push_back(index);
  }
  node.data = {dim};
  return add(std::move(node));
}

NodeId Dag::math(Op op, const std::vector<NodeId>& given) {
  // Broadcast.
  Sizes sizes;
  for (const NodeId id : given) {
    const Sizes& other = nodes_[id].sizes;
    if (other.size() > sizes.size()) sizes.insert(sizes.begin(), other.size() - sizes.size(), 1);
    for (size_t i = 0; i < other.size(); ++i) {
      Size& size = sizes[sizes.size() - other.size() + i];
      if (size == 1) size = other[i];
    }
  }
  std::vector<NodeId> operands;
  for (const NodeId id : given) operands.push_back(broadcast(id, sizes));
  if (const NodeId simple = simplified(op, operands); simple != kNoNode) return simple;
  if (commutes(op) && operands[0] > operands[1]) std::swap(operands[0], operands[1]);
  const bool compares = loops::facts(op).op_class == loops::OpClass::Compare;
  const Dtype dtype = compares ? Dtype::Bool : nodes_[operands[op == Op::Select ? 1 : 0]].dtype;
  Node node{NodeKind::Math, op, dtype, std::move(sizes), std::move(operands)};
  return add(std::move(node));
}

NodeId Dag::simplified(Op op, const std::vector<NodeId>& operands) {
  const auto is_number = [&](size_t i) { return nodes_[operands[i]].kind == NodeKind::Number; };
  const auto is = [&](size_t i, double value) {
    const Node& node = nodes_[operands[i]];
    if (node.kind != NodeKind::Number) return false;
    if (!loops::is_float(node.dtype)) return node.data[0].number() == static_cast<int64_t>(value);
    return node.number == value && std::signbit(node.number) == std::signbit(value);
  };
  const Node& first = nodes_[operands[0]];
  const bool is_float = loops::is_float(first.dtype);
  const bool single = first.dtype == Dtype::F32;
  const auto folded = [&](double value) {
    return number(first.dtype, single ? static_cast<double>(static_cast<float>(value)) : value, first.sizes);
  };
  if (is_float && is_number(0) && operands.size() == 2 && is_number(1)) {
    // In double: the four operations of floats are then rounded twice, which changes no result.
    const double a = first.number, b = nodes_[operands[1]].number;
    if (op == Op::Add) return folded(a + b);
    if (op == Op::Sub) return folded(a - b);
    if (op == Op::Mul) return folded(a * b);
    if (op == Op::Div) return folded(a / b);
  }
  if (is_float && is_number(0) && op == Op::Neg) return folded(-first.number);
  if (is_float && is_number(0) && op == Op::Sqrt) return folded(std::sqrt(first.number));
  if (first.dtype == Dtype::I64 && is_number(0) && operands.size() == 2 && is_number(1)) {
    const auto a = static_cast<uint64_t>(first.data[0].number());
    const auto b = static_cast<uint64_t>(nodes_[operands[1]].data[0].number());
    if (op == Op::Add) return integer(Dtype::I64, static_cast<int64_t>(a + b), first.sizes);
    if (op == Op::Sub) return integer(Dtype::I64, static_cast<int64_t>(a - b), first.sizes);
    if (op == Op::Mul) return integer(Dtype::I64, static_cast<int64_t>(a * b), first.sizes);
  }
  switch (op) {
    case Op::Add:
      // x + 0 is no identity: -0 + 0 is 0. x + -0 is one.
      if (is(1, is_float ? -0.0 : 0)) return operands[0];
      if (is(0, is_float ? -0.0 : 0)) return operands[1];
      break;
    case Op::Sub:
      if (is(1, 0.0)) return operands[0];
      break;
    case Op::Mul:
      if (is(1, 1)) return operands[0];
      if (is(0, 1)) return operands[1];
      break;
    case Op::Div:
      if (is(1, 1)) return operands[0];
      break;
    case Op::Neg:
      if (first.kind == NodeKind::Math && first.op == Op::Neg) return first.operands[0];
      break;
    case Op::RoundBF16:
    case Op::RoundF16:
      if (first.kind == NodeKind::Math && first.op == op) return operands[0];
      break;
    case Op::And:
      if (first.dtype == Dtype::Bool && is(1, 1)) return operands[0];
      if (first.dtype == Dtype::Bool && is(0, 1)) return operands[1];
      if (first.dtype == Dtype::Bool && is(1, 0)) return operands[1];
      if (first.dtype == Dtype::Bool && is(0, 0)) return operands[0];
      if (operands[0] == operands[1]) return operands[0];
      break;
    case Op::Or:
      if (first.dtype == Dtype::Bool && is(1, 0)) return operands[0];
      if (first.dtype == Dtype::Bool && is(0, 0)) return operands[1];
      if (operands[0] == operands[1]) return operands[0];
      break;
    case Op::Not:
      if (first.kind == NodeKind::Math && first.op == Op::Not) return first.operands[0];
      if (first.dtype == Dtype::Bool && is_number(0)) return integer(Dtype::Bool, !first.data[0].number(), first.sizes);
      break;
    case Op::Ne:
      if (first.dtype == Dtype::Bool && is(1, 0)) return operands[0];
      break;
    case Op::Select:
      if (is(0, 1)) return operands[1];
      if (is(0, 0)) return operands[2];
      if (operands[1] == operands[2]) return operands[1];
      break;
    default:
      break;
  }
  return kNoNode;
}

// -- text
// ----------------------------------------------------------------------------------------------------------------

std::string print(const Dag& dag, const std::vector<NodeId>& roots, const std::function<std::string(NodeId)>& comment) {
  std::vector<bool> needed(dag.size(), false);
  for (const NodeId id : roots) needed[id] = true;
  for (NodeId id = dag.size(); id-- > 0;) {
    if (!needed[id]) continue;
    for (const NodeId operand : dag[id].operands) needed[operand] = true;
  }
  std::string out;
  const auto list = [&](const auto& items, auto text) {
    std::string joined = "[";
    for (size_t i = 0; i < items.size(); ++i) joined += (i ? ", " : "") + text(items[i]);
    return joined + "]";
  };
  const auto number = [](const Size& value) { return text(value); };
  for (NodeId id = 0; id < dag.size(); ++id) {
    if (!needed[id]) continue;
    const Node& node = dag[id];
    out +=
        "n" + std::to_string(id) + ": " + std::string(loops::dtype_text(node.dtype)) + list(node.sizes, number) + " = ";
    switch (node.kind) {
      case NodeKind::Leaf:
        out += "leaf b" + number(node.data[0]) + " + " + number(node.data[1]) + " " +
               list(Sizes(node.data.begin() + 2, node.data.end()), number);
        break;
      case NodeKind::Number:
        out += loops::is_float(node.dtype) ? std::to_string(node.number) : number(node.data[0]);
        break;
      case NodeKind::View:
        out += "view";
        break;
      case NodeKind::Gather:
        out += "gather";
        break;
      case NodeKind::Guard:
        out += "guard";
        break;
      case NodeKind::Scatter:
        out += "scatter";
        break;
      default:
        out += loops::facts(node.op).text;
    }
    for (const NodeId operand : node.operands) out += " n" + std::to_string(operand);
    if (!node.map.empty()) out += " " + list(node.map, [](Expr expr) { return shapes::text(expr); });
    if (!node.data.empty() && node.kind != NodeKind::Leaf && node.kind != NodeKind::Number)
      out += " " + list(node.data, number);
    if (const std::string text = comment ? comment(id) : ""; !text.empty()) out += "  # " + text;
    out += "\n";
  }
  return out;
}

}  // namespace magneto::lower
