#include "fake/data_sizes.h"

#include <algorithm>
#include <unordered_map>

#include "fake/dispatch_key.h"
#include "fake/record.h"
#include "fake/size_node.h"
#include "fake/stand_ins.h"
#include "graph/aliases.h"
#include "ops/kinds.h"
#include "python/imported.h"
#include "python/ref.h"
#include "support/gil.h"

namespace magneto::fake {

namespace {

using c10::SymInt;

/// A result with memory of its own; no strides: contiguous.
struct Made {
  c10::ScalarType dtype;
  SymSizes sizes;
  SymSizes strides = {};
};

/// The results, where `size` is the number that only the data says. False: declined.
using DataRule = bool (*)(std::span<const c10::IValue> args, const SymInt& size, std::vector<Made>& results);

SymSizes sizes_of(const c10::IValue& tensor) {
  const c10::SymIntArrayRef sizes = tensor.toTensor().sym_sizes();
  return SymSizes(sizes.begin(), sizes.end());
}

/// A row for each element that is not zero; column after column in memory.
bool nonzero(std::span<const c10::IValue> args, const SymInt& size, std::vector<Made>& results) {
  results.push_back({c10::kLong, {size, args[0].toTensor().dim()}, {1, size}});
  return true;
}

/// One dimension of elements like those of the first argument.
bool vector(std::span<const c10::IValue> args, const SymInt& size, std::vector<Made>& results) {
  results.push_back({args[0].toTensor().scalar_type(), {size}});
  return true;
}

/// Of packed sequences, which are not empty.
bool packed(std::span<const c10::IValue> args, const SymInt& size, std::vector<Made>& results) {
  return vector(args, size, results);
}

/// A number for each from 0 to the largest, without or with weights.
bool bincount(std::span<const c10::IValue> args, const SymInt& size, std::vector<Made>& results) {
  const bool weighted = !args[1].isNone();
  const bool narrow = weighted && args[1].toTensor().scalar_type() == c10::kFloat;
  results.push_back({!weighted ? c10::kLong : narrow ? c10::kFloat : c10::kDouble, {size}});
  return true;
}

/// (self, ..., return_inverse, return_counts): where they are not wanted, those are empty.
bool add_unique(std::span<const c10::IValue> args, size_t flags, SymSizes values, const SymSizes& inverse,
                const SymInt& size, std::vector<Made>& results) {
  results.push_back({args[0].toTensor().scalar_type(), std::move(values)});
  results.push_back({c10::kLong, args[flags].toBool() ? inverse : SymSizes{0}});
  results.push_back({c10::kLong, SymSizes{args[flags + 1].toBool() ? size : SymInt(0)}});
  return true;
}

bool unique2(std::span<const c10::IValue> args, const SymInt& size, std::vector<Made>& results) {
  return add_unique(args, 2, {size}, sizes_of(args[0]), size, results);
}

bool unique_consecutive(std::span<const c10::IValue> args, const SymInt& size, std::vector<Made>& results) {
  return args[3].isNone() && add_unique(args, 1, {size}, sizes_of(args[0]), size, results);
}

/// Along the first dimension.
bool unique_dim(std::span<const c10::IValue> args, const SymInt& size, std::vector<Made>& results) {
  SymSizes values = sizes_of(args[0]);
  if (values.empty() || args[1].toInt() != 0) return false;
  const SymSizes inverse = {values[0]};
  values[0] = size;
  return add_unique(args, 3, values, inverse, size, results);
}

/// (log_probs, ...): the loss of each sequence, and what is kept of it: for each time, and each place in the longest
/// target and around it.
bool ctc_loss(std::span<const c10::IValue> args, const SymInt& size, std::vector<Made>& results) {
  const at::Tensor& log_probs = args[0].toTensor();
  if (log_probs.dim() != 3 || !log_probs.device().is_cpu()) return false;
  const SymInt times = log_probs.sym_size(0), count = log_probs.sym_size(1);
  results.push_back({log_probs.scalar_type(), {count}});
  results.push_back({log_probs.scalar_type(), {count, times, size}});
  return true;
}

DataRule rule_of(const c10::OperatorHandle& op) {
  static const auto* rules = new std::unordered_map<std::string, DataRule>{
#define ROW_shape_data(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  const auto row = rules->find(c10::toString(op.operator_name()));
  return row == rules->end() ? nullptr : row->second;
}

std::vector<int64_t> examples(SessionState& state, const SymSizes& sizes) {
  std::vector<int64_t> numbers;
  for (const SymInt& size : sizes) numbers.push_back(state.sizes.example(expr_of(size)));
  return numbers;
}

at::Tensor make(Session& session, const Made& made, c10::Device device) {
  SessionState& state = *session.impl().state;
  const SymSizes strides = made.strides.empty() ? contiguous_strides(state, made.sizes) : made.strides;
  at::Tensor tensor = session.impl().empty(examples(state, made.sizes), examples(state, strides), made.dtype, device);
  auto symbolic = std::make_shared<FakeImpl::Symbolic>();
  symbolic->sizes.assign(made.sizes.begin(), made.sizes.end());
  symbolic->strides.assign(strides.begin(), strides.end());
  symbolic->offset = 0;
  as_fake(tensor)->set_symbolic(std::move(symbolic));
  return tensor;
}

bool is_mask(const c10::IValue& index) {
  return index.isTensor() && index.toTensor().defined() &&
         (index.toTensor().scalar_type() == c10::kBool || index.toTensor().scalar_type() == c10::kByte);
}

/// Indices with one mask, which stands for as many index tensors as it has dimensions. Nothing: more masks, or one that
/// does not fit.
std::optional<std::vector<c10::IValue>> without_mask(Session& session, std::span<const c10::IValue> args,
                                                     const SymInt& size) {
  std::vector<c10::IValue> changed(args.begin(), args.end());
  const at::Tensor& self = args[0].toTensor();
  c10::List<std::optional<at::Tensor>> indices;
  bool masked = false;
  for (const c10::IValue& item : args[1].toListRef()) {
    if (!is_mask(item)) {
      indices.push_back(item.isNone() ? std::nullopt : std::optional(item.toTensor()));
      continue;
    }
    const at::Tensor& mask = item.toTensor();
    if (std::exchange(masked, true) || mask.dim() == 0 || as_fake(mask)->known()) return std::nullopt;
    for (int64_t k = 0; k < mask.dim(); ++k) {
      const auto dim = static_cast<int64_t>(indices.size());
      if (dim >= self.dim() || mask.sym_size(k) != self.sym_size(dim)) return std::nullopt;
      indices.push_back(make(session, {c10::kLong, {size}}, mask.device()));
    }
  }
  changed[1] = std::move(indices);
  return changed;
}

bool is_index(const c10::OperatorHandle& op) { return ops::is_kind(ops::operator_of(op), ops::takes_masks); }

bool is_mask(const graph::TensorMeta& meta) { return meta.dtype == c10::kBool || meta.dtype == c10::kByte; }

}  // namespace

graph::ValueId counted_by(const graph::Graph& graph, const graph::AtenNode& node) {
  if (rule_of(node.op) == nonzero) return std::get<graph::ValueId>(node.args[0]);
  if (!is_index(node.op)) return graph::kNoValue;
  graph::ValueId mask = graph::kNoValue;
  graph::for_each_tensor(node.args[1], [&](graph::ValueId id) {
    if (is_mask(graph.values[id].meta)) mask = id;
  });
  return mask;
}

namespace {

/// A constant operand that is one number, or none.
bool is_same_constant(const c10::IValue& a, const c10::IValue& b) {
  if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
  if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
  if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
  return a.isDouble() && b.isDouble() && a.toDouble() == b.toDouble();
}

/// What programs write of a mask twice: `y[~mask] = f(x[~mask])`.
constexpr int kMostMaskOperators = 8;

/// Both are computed by the same operators of the same values, none of which is ever written.
class SameValues {
 public:
  explicit SameValues(const graph::Graph& graph)
      : graph_(graph),
        aliases_(graph),
        inputs_written_(std::ranges::any_of(graph.inputs, [&](graph::ValueId id) { return aliases_.written(id); })) {}

  bool same(graph::ValueId a, graph::ValueId b, int depth = kMostMaskOperators) const {
    if (a == graph::kNoValue || b == graph::kNoValue || is_written(a) || is_written(b)) return false;
    if (a == b) return true;
    const graph::Value &left = graph_.values[a], &right = graph_.values[b];
    if (depth == 0 || left.kind != graph::ValueKind::Result || right.kind != graph::ValueKind::Result) return false;
    const graph::AtenNode &made = graph_.aten_nodes[left.producer], &again = graph_.aten_nodes[right.producer];
    const ops::Operator& op = ops::operator_of(made.op);
    const bool plain = made.op.operator_name().name.starts_with("aten::");  // others, who knows
    if (made.op != again.op || !plain || op.random || op.effect || op.writes || made.results.size() != 1) return false;
    for (size_t i = 0; i < made.args.size(); ++i) {
      const auto *value = std::get_if<graph::ValueId>(&made.args[i]),
                 *other = std::get_if<graph::ValueId>(&again.args[i]);
      const auto *constant = std::get_if<c10::IValue>(&made.args[i]), *same = std::get_if<c10::IValue>(&again.args[i]);
      const bool equal = value && other ? this->same(*value, *other, depth - 1)
                                        : constant && same && is_same_constant(*constant, *same);
      if (!equal) return false;
    }
    return true;
  }

 private:
  bool is_written(graph::ValueId id) const { return aliases_.written(id) || (aliases_.input(id) && inputs_written_); }

  const graph::Graph& graph_;
  const graph::Aliases aliases_;
  const bool inputs_written_;
};

/// The number that an operator before has told already: what it counts has not been written. A gradient that is read
/// through the mask by which the forward wrote has the forward's size.
std::optional<shapes::Expr> counted_before(Session& session, bool indexes, std::span<const c10::IValue> args) {
  const Session::Impl& impl = session.impl();
  const graph::Graph& graph = impl.graph;
  graph::ValueId counted = graph::kNoValue;
  if (indexes) {
    for (const c10::IValue& item : args[1].toListRef()) {
      if (is_mask(item)) counted = impl.value_of(*as_fake(item.toTensor()));
    }
  } else {
    counted = impl.value_of(*as_fake(args[0].toTensor()));
  }
  if (counted == graph::kNoValue) return std::nullopt;
  const SameValues values(graph);
  const auto known = std::ranges::find_if(graph.symbols, [&](const graph::SymbolBinding& binding) {
    const graph::Value& value = graph.values[binding.value];
    return value.kind == graph::ValueKind::Result && binding.dim >= 0 &&
           values.same(counted_by(graph, graph.aten_nodes[value.producer]), counted);
  });
  if (known == graph.symbols.end()) return std::nullopt;
  return shapes::Expr::symbol(known->symbol);
}

/// The number that has been read of such a tensor already, which nothing has written since: what a backward asks of the
/// lengths by which its forward has cut a tensor.
std::optional<shapes::Expr> read_before(const graph::Graph& graph, graph::ValueId tensor) {
  const auto reads = [&](const graph::SymbolBinding& binding) {
    return binding.dim < 0 && graph.values[binding.value].kind == graph::ValueKind::Result;
  };
  if (tensor == graph::kNoValue || std::ranges::none_of(graph.symbols, reads)) return std::nullopt;
  const SameValues values(graph);
  const auto known = std::ranges::find_if(graph.symbols, [&](const graph::SymbolBinding& binding) {
    if (!reads(binding)) return false;
    const graph::AtenNode& node = graph.aten_nodes[graph.values[binding.value].producer];
    const auto* of =
        node.op.operator_name().name == "magneto::item" ? std::get_if<graph::ValueId>(&node.args[0]) : nullptr;
    return of && values.same(*of, tensor);
  });
  if (known == graph.symbols.end()) return std::nullopt;
  return shapes::Expr::symbol(known->symbol);
}

/// The number that an argument called `count` says: the operator checks that it is so.
std::optional<shapes::Expr> told_count(const c10::OperatorHandle& op, std::span<const c10::IValue> args) {
  const std::optional<int> index = op.schema().argumentIndexWithName("count");
  if (!index || args[*index].isNone()) return std::nullopt;
  return expr_of(args[*index].toSymInt());
}

}  // namespace

std::optional<std::vector<c10::IValue>> infer_from_data(Session& session, const c10::OperatorHandle& op,
                                                        const OperatorFacts& facts, std::span<const c10::IValue> args) {
  SessionState& state = *session.impl().state;
  const bool indexes = is_index(op);
  const DataRule rule = rule_of(op);
  if (!session.takes.sizes || (!rule && !indexes)) return std::nullopt;
  const auto before = indexes || rule == nonzero ? counted_before(session, indexes, args) : told_count(op, args);
  if (before) session.impl().last_unbacked.reset();
  const SymInt size = to_symint(
      session.impl().state, before ? *before : session.impl().make_unbacked({rule == packed ? 1 : 0, INT64_MAX}, op));
  if (rule) {
    std::vector<Made> made;
    if (!rule(args, size, made)) return std::nullopt;
    std::vector<c10::IValue> results;
    for (const Made& each : made) results.emplace_back(make(session, each, args[0].toTensor().device()));
    return results;
  }
  const auto indices = without_mask(session, args, size);
  if (!indices) return std::nullopt;
  Call call(*indices);
  {
    const BelowFake guard;
    const Hints hints(state);
    if (!facts.rule(call)) return std::nullopt;
  }
  if (!infer_symbolic(state, facts.symbolic_rule, *indices, call.results())) return std::nullopt;
  return std::move(call.results());
}

std::optional<std::vector<c10::IValue>> infer_from_context(Session& session, const c10::OperatorHandle& op,
                                                           std::span<const c10::IValue> args) {
  static constinit Imported begin("magneto._fake_sizes", "begin"), said("magneto._fake_sizes", "SIZE");
  if (!session.takes.sizes || op.schema().is_mutable()) return std::nullopt;
  const WithGil gil;
  const int64_t size = PyLong_AsLongLong(said.get());
  const Ref end = checked(PyObject_CallNoArgs(begin.get()));
  std::vector<c10::IValue> results;
  const auto run = [&] {
    try {
      results = call_on_stand_ins(session, op, args, StandIn::Meta);
      return true;
    } catch (const std::exception&) {
      PyErr_Clear();
      return false;
    }
  };
  const bool told = run();
  Ref::steal(PyObject_CallNoArgs(end.get()));
  if (!told) return std::nullopt;
  std::vector<Made> made;
  bool found = false;
  for (const c10::IValue& result : results) {
    if (!result.isTensor() || !result.toTensor().is_contiguous()) return std::nullopt;
    SymSizes sizes;
    for (const int64_t each : result.toTensor().sizes()) {
      if (each > size / 2 && each != size) return std::nullopt;  // computed from it
      sizes.emplace_back(each);
      found |= each == size;
    }
    made.push_back({result.toTensor().scalar_type(), std::move(sizes)});
  }
  if (!found) return std::nullopt;
  const SymInt symbol = to_symint(session.impl().state, session.impl().make_unbacked({0, INT64_MAX}, op));
  const Hints hints(*session.impl().state);
  for (size_t i = 0; i < made.size(); ++i) {
    bool varies = false;
    for (SymInt& each : made[i].sizes) {
      if (each.expect_int() != size) continue;
      each = symbol;
      varies = true;
    }
    if (varies) results[i] = make(session, made[i], results[i].toTensor().device());
  }
  return results;
}

void bind_symbol(Session& session, std::span<const c10::IValue> results) {
  Session::Impl& impl = session.impl();
  if (!impl.last_unbacked) return;  // known from before
  const shapes::Expr symbol = *impl.last_unbacked;
  for (const c10::IValue& result : results) {
    const at::Tensor& tensor = result.toTensor();
    const FakeImpl::Symbolic* symbolic = as_fake(tensor)->symbolic();
    for (int64_t dim = 0; symbolic && dim < tensor.dim(); ++dim) {
      if (!(expr_of(symbolic->sizes[dim]) == symbol)) continue;
      return impl.graph.symbols.push_back({symbol.id(), impl.value_of(*as_fake(tensor)), static_cast<int32_t>(dim)});
    }
  }
  throw std::logic_error("no result says the size " + shapes::text(symbol));
}

graph::ValueId mask_of_places(const graph::AtenNode& node) {
  return rule_of(node.op) == nonzero ? std::get<graph::ValueId>(node.args[0]) : graph::kNoValue;
}

namespace {

/// A tensor of one number that is beside tensors what a Python number is.
at::Tensor wrapped_number(Session& session, c10::ScalarType dtype = c10::kLong) {
  at::Tensor number = session.impl().empty({}, {}, dtype, c10::kCPU);
  as_fake(number)->set_wrapped_number(true);
  return number;
}

}  // namespace

/// (self, size): the same elements in another shape.
static bool takes_new_size(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return arguments.size() == 2 && arguments[1].name() == "size" && ops::operator_of(op).is(ops::keeps_order);
}

std::vector<shapes::Relation> needed_of_data(const c10::OperatorHandle& op, std::span<const c10::IValue> args) {
  const ops::Operator& known = ops::operator_of(op);
  const auto size_in = [&](size_t dim_arg) {
    const at::Tensor& self = args[0].toTensor();
    const int64_t dim = args[dim_arg].toInt();
    return expr_of(self.sym_size(dim < 0 ? dim + self.dim() : dim));
  };
  std::vector<shapes::Relation> needed;
  if (ops::is_kind(known, ops::needs_lengths) && args[1].isList()) {
    shapes::Expr total = 0;
    for (const c10::IValue& length : args[1].toListRef()) {
      total += expr_of(length.toSymInt());
      needed.push_back(shapes::at_most(0, expr_of(length.toSymInt())));
    }
    needed.push_back(shapes::equal(total, size_in(2)));
  } else if (takes_new_size(op)) {
    shapes::Expr count = 1, asked = 1;
    for (const c10::SymInt& size : args[0].toTensor().sym_sizes()) count *= expr_of(size);
    bool open = false;
    for (const c10::IValue& size : args[1].toListRef()) {
      const shapes::Expr number = expr_of(size.toSymInt());
      open |= number.is_constant(-1);
      if (!number.is_constant(-1)) asked *= number;
    }
    if (!asked.is_constant() || asked.number() > 0) {
      needed.push_back(open ? shapes::equal(shapes::mod(count, asked), 0) : shapes::equal(count, asked));
    }
  } else if (ops::is_kind(known, ops::needs_index)) {
    needed = {shapes::at_most(0, expr_of(args[2].toSymInt())), shapes::less(expr_of(args[2].toSymInt()), size_in(1))};
  }
  return needed;
}

std::optional<std::vector<c10::IValue>> infer_own(Session& session, const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  if (name == "magneto::check") return std::vector<c10::IValue>();
  if (name == "magneto::number") return std::vector<c10::IValue>{wrapped_number(session)};
  if (name == "magneto::size") return std::vector<c10::IValue>{session.impl().empty({}, {}, c10::kLong, c10::kCPU)};
  if (name == "magneto::arithmetic" || name == "magneto::item")
    return std::vector<c10::IValue>{wrapped_number(session, c10::kDouble)};
  if (name == "magneto::float") return std::vector<c10::IValue>{session.impl().empty({}, {}, c10::kDouble, c10::kCPU)};
  return std::nullopt;
}

std::optional<c10::IValue> infer_item(Session& session, std::span<const c10::IValue> args) {
  const at::Tensor& tensor = args[0].toTensor();
  if (!session.takes.numbers || !c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false) ||
      tensor.scalar_type() == c10::kUInt64) {
    return std::nullopt;
  }
  static const c10::OperatorHandle item = c10::Dispatcher::singleton().findSchemaOrThrow("magneto::item", "");
  Session::Impl& impl = session.impl();
  if (const auto before = read_before(impl.graph, impl.value_of(*as_fake(tensor)))) {
    return c10::IValue(to_symint(impl.state, *before));
  }
  const int32_t symbol = impl.make_unbacked({}, item).id();
  c10::IValue read = wrapped_number(session);
  {
    const Hints hints(*impl.state);
    record(session, item, facts_of(item), args.first(1), {&read, 1});
  }
  impl.graph.symbols.push_back({symbol, impl.value_of(*as_fake(read.toTensor())), -1});
  return c10::IValue(to_symint(impl.state, shapes::Expr::symbol(symbol)));
}

}  // namespace magneto::fake
