#include "lower/lowering.h"

#include <algorithm>
#include <unordered_map>

#include "graph/aliases.h"
#include "graph/overlap.h"
#include "graph/text.h"
#include "lower/fused.h"
#include "lower/order.h"
#include "ops/kinds.h"
#include "passes/effects.h"

namespace magneto::lower {

using graph::AtenNode;
using graph::kNoValue;
using graph::TensorMeta;
using graph::ValueId;
using graph::ValueKind;

std::optional<Dtype> loop_dtype(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat:
      return Dtype::F32;
    case c10::kDouble:
      return Dtype::F64;
    case c10::kBFloat16:
      return Dtype::BF16;
    case c10::kHalf:
      return Dtype::F16;
    case c10::kChar:
      return Dtype::I8;
    case c10::kShort:
      return Dtype::I16;
    case c10::kInt:
      return Dtype::I32;
    case c10::kLong:
      return Dtype::I64;
    case c10::kByte:
      return Dtype::U8;
    case c10::kBool:
      return Dtype::Bool;
    default:
      return std::nullopt;
  }
}

namespace {

const std::unordered_map<std::string, const RuleRow*>& all_rows() {
  static const auto* rules = [] {
    auto* table = new std::unordered_map<std::string, const RuleRow*>;
    const auto add = [&](std::span<const RuleRow> rows) {
      for (const RuleRow& row : rows) {
        TORCH_CHECK(table->emplace(row.op, &row).second, "magneto: two lowering rules for ", std::string(row.op));
      }
    };
#define X(family) add(family##_rules());
    MAGNETO_LOWERING_FAMILIES(X)
#undef X
    return table;
  }();
  return *rules;
}

}  // namespace

const RuleRow* find_row(const c10::OperatorHandle& op) {
  const auto found = all_rows().find(c10::toString(op.operator_name()));
  return found == all_rows().end() ? nullptr : found->second;
}

std::vector<std::string> exact_operators() {
  std::vector<std::string> names;
  for (const auto& [name, row] : all_rows()) {
    if (row->is_exact) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

bool is_fused(const graph::AtenNode& node) {
  const RuleRow* row = find_row(node.op);
  return row && std::ranges::none_of(matmul_rules(), [&](const RuleRow& other) { return &other == row; });
}

Lowering::Lowering(passes::Functional functional, Choices choices) {
  program.choices = std::move(choices);
  program.functional = std::move(functional);
  const size_t count = graph().values.size();
  program.places.resize(count);
  bindings_.resize(count);
  dag.symbols = graph::facts_of(graph());
}

void Lowering::run() {
  const graph::Graph& graph = this->graph();
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const BufferId buffer = add_buffer(BufferKind::Input, graph.inputs[i]);
    program.buffers[buffer].input = static_cast<int32_t>(i);
    add_leaf(graph.inputs[i], buffer);
  }
  for (ValueId id = 0; id < static_cast<ValueId>(graph.values.size()); ++id) {
    const graph::Value& value = graph.values[id];
    if (value.kind != ValueKind::Constant) continue;
    bindings_[id].base = id;
    const auto dtype = loop_dtype(value.meta.dtype);
    // One element: a number.
    if (dtype && value.constant.numel() == 1 && value.constant.is_cpu()) {
      const c10::Scalar number = value.constant.item();
      const Dtype wide = loops::value_dtype(*dtype);
      bindings_[id].node = loops::is_float(wide) ? dag.number(wide, number.toDouble(), graph::sizes_of(value.meta))
                                                 : dag.integer(wide, number.toLong(), graph::sizes_of(value.meta));
      continue;
    }
    add_leaf(id, add_buffer(BufferKind::Constant, id));
  }
  find_leaving();
  find_read();
  for (const int32_t i : order_of(graph)) add(i);
  current_ = -1;
  finish_outputs();
}

void Lowering::find_leaving() {
  leaves_.resize(graph().values.size());
  const auto mark = [&](ValueId id) {
    while (!leaves_[id]) {
      leaves_[id] = true;
      const int32_t producer = graph().values[id].producer;
      if (producer < 0 || !passes::traits_of(graph().aten_nodes[producer].op).view) return;
      id = std::get<ValueId>(graph().aten_nodes[producer].args[0]);
    }
  };
  for (const ValueId id : graph().outputs) mark(id);
  for (const auto& write : program.functional.writes) mark(write.value);
  for (const AtenNode& node : graph().aten_nodes) {
    if (passes::traits_of(node.op).aliases) graph::for_each_operand(node, mark);
  }
}

void Lowering::find_read() {
  read_.resize(graph().values.size());
  for (const AtenNode& node : graph().aten_nodes) graph::for_each_operand(node, [&](ValueId id) { read_[id] = true; });
  for (const ValueId id : graph().outputs) read_[id] = true;
  for (const auto& write : program.functional.writes) read_[write.value] = true;
}

BufferId Lowering::add_buffer(BufferKind kind, ValueId value) {
  Buffer buffer{.kind = kind, .value = value, .dtype = meta(value).dtype, .device = meta(value).device};
  buffer.sizes = graph::sizes_of(meta(value));
  buffer.strides = graph::strides_of(meta(value));
  program.buffers.push_back(buffer);
  const auto id = static_cast<BufferId>(program.buffers.size() - 1);
  program.places[value] = {id, 0};
  return id;
}

/// The value is a buffer: an expression that reads it, if kernels know its dtype.
void Lowering::add_leaf(ValueId id, BufferId buffer) {
  bindings_[id].base = id;
  const TensorMeta& meta = this->meta(id);
  const auto dtype = loop_dtype(meta.dtype);
  if (!dtype || meta.strides.size() != meta.sizes.size() || !meta.device.is_cpu()) return;
  bindings_[id].node = dag.leaf(buffer, loops::value_dtype(*dtype), graph::sizes_of(meta), graph::strides_of(meta), 0);
}

void Lowering::add(int32_t index) {
  current_ = index;
  const AtenNode& node = graph().aten_nodes[index];
  if (passes::traits_of(node.op).view) return add_view(node);
  // What nobody reads is there because it may raise: a kernel would compute nothing of it.
  const bool is_read = std::ranges::any_of(node.results, [&](ValueId id) { return id != kNoValue && read_[id]; });
  if (is_read && !passes::is_pinned(node) && !program.choices.called.contains(index) && try_rule(index)) return;
  add_extern(index);
}

void Lowering::add_view(const AtenNode& node) {
  const ValueId source = std::get<ValueId>(node.args[0]);
  for (const ValueId id : node.results) {
    if (id != kNoValue) bindings_[id].base = bindings_[source].base;
  }
}

NodeId Lowering::node_of(ValueId id) {
  Binding& binding = bindings_[id];
  if (binding.node != kNoNode || binding.base == id) return binding.node;
  // A view: by its position in the memory that its base has, or would have.
  const Binding& base = bindings_[binding.base];
  if (base.node == kNoNode) return kNoNode;
  const TensorMeta& from = meta(binding.base);
  const TensorMeta& to = meta(id);
  const Sizes sizes = graph::sizes_of(to), strides = graph::strides_of(to);
  const Size offset = graph::offset_of(to) - graph::offset_of(from);
  const Node& source = dag[base.node];
  if (source.kind == NodeKind::Leaf && program.places[binding.base].buffer == source.buffer()) {
    return binding.node = dag.leaf(source.buffer(), source.dtype, sizes, strides, offset);
  }
  if (source.kind == NodeKind::Number) {
    return binding.node = dag.view(base.node, std::vector<Expr>(source.sizes.size()), sizes);
  }
  if (!is_dense(graph::sizes_of(from), graph::strides_of(from))) return kNoNode;
  Expr position = offset.expr();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1) position += Expr::variable(static_cast<int32_t>(i)) * strides[i].expr();
  }
  return binding.node =
             dag.view(base.node, delinearise(position, graph::sizes_of(from), graph::strides_of(from)), sizes);
}

bool Lowering::try_rule(int32_t index) {
  const AtenNode& node = graph().aten_nodes[index];
  const RuleRow* row = find_row(node.op);
  if (!row || (program.choices.exact && !row->is_exact)) return false;
  for (const ValueId id : node.results) {
    if (id == kNoValue) continue;
    const TensorMeta& made = meta(id);
    if (!made.device.is_cpu() || !loop_dtype(made.dtype)) return false;
    if (!is_dense(graph::sizes_of(made), graph::strides_of(made))) return false;
  }
  bool known = true;
  graph::for_each_operand(node, [&](ValueId id) { known = known && node_of(id) != kNoNode; });
  if (!known) return false;
  Call call(*this, node);
  const auto applies = [&] {
    try {
      return (!program.choices.exact || row->is_exact(call)) && row->rule(call);
    } catch (const shapes::UnknownSize&) {
      return false;
    } catch (const Declined&) {
      return false;
    }
  };
  if (!applies()) {
    for (const ValueId id : node.results) {
      if (id != kNoValue) bindings_[id] = {};
    }
    return false;
  }
  for (const ValueId id : node.results) {
    if (id != kNoValue && bindings_[id].node == kNoNode) {
      throw std::logic_error("the rule of " + graph::operator_text(node.op) + " gave too few results");
    }
  }
  return true;
}

void Lowering::set_value(ValueId id, T value) {
  const TensorMeta& meta = this->meta(id);
  const Dtype dtype = *loop_dtype(meta.dtype);
  value = value.to(loops::value_dtype(dtype));
  if (dtype == Dtype::BF16 || dtype == Dtype::F16) {
    if (!is_rounded(value.id, dtype)) value = value.apply(dtype == Dtype::BF16 ? Op::RoundBF16 : Op::RoundF16);
  }
  value = broadcast(value, graph::sizes_of(meta));
  bindings_[id] = {value.id, id};
  node_origin.resize(dag.size(), current_);
}

bool Lowering::is_rounded(NodeId id, Dtype dtype) {
  // All nodes in order, not the operands of this one: many paths may lead to one node, and be long.
  std::vector<bool>& known = rounded_[dtype == Dtype::BF16 ? 0 : 1];
  while (known.size() <= static_cast<size_t>(id)) {
    known.push_back(find_rounded(static_cast<NodeId>(known.size()), dtype, known));
  }
  return known[id];
}

bool Lowering::find_rounded(NodeId id, Dtype dtype, const std::vector<bool>& known) const {
  const Node& node = dag[id];
  switch (node.kind) {
    case NodeKind::Leaf:
      return loop_dtype(meta(program.buffers[node.buffer()].value).dtype) == dtype;
    case NodeKind::View:
    case NodeKind::Gather:
      return known[node.operands[0]];
    case NodeKind::Guard:
      return known[node.operands[0]] && known[node.operands[1]];
    case NodeKind::Number:
      return node.number == 0 || node.number == 1;
    case NodeKind::Math:
      if (node.op == (dtype == Dtype::BF16 ? Op::RoundBF16 : Op::RoundF16)) return true;
      if (node.op == Op::Select) return known[node.operands[1]] && known[node.operands[2]];
      if (node.op == Op::Neg || node.op == Op::Abs) return known[node.operands[0]];
      return false;
    default:
      return false;
  }
}

Size Lowering::offset_between(ValueId base, ValueId id) const {
  return graph::offset_of(meta(id)) - graph::offset_of(meta(base));
}

/// Tensors of equal contents (an optimizer's counters) are one node. Of a kernel with a thousand stores LLVM takes
/// seconds, the square of what it takes of a hundred.
NodeId Lowering::stored(NodeId node) {
  constexpr int kMostStores = 64;
  auto& [copy, count] = stored_.try_emplace(node, node, 0).first->second;
  if (count++ == kMostStores) {
    copy = dag.copy(copy);
    count = 1;
  }
  return copy;
}

BufferId Lowering::materialise(ValueId id) {
  const ValueId base = bindings_[id].base;
  const BufferId known = program.places[base].buffer;
  if (known != kNoBuffer) {
    if (id != base) program.places[id] = {known, offset_between(base, id)};
    return known;
  }
  const NodeId node = bindings_[base].node;
  BufferId buffer;
  if (!leaves_[base] && holds(node, meta(base))) {
    buffer = dag[node].buffer();
    program.places[base] = {buffer, 0};
  } else if (graph().values[base].kind == ValueKind::Constant) {
    buffer = add_buffer(BufferKind::Constant, base);
  } else {
    buffer = add_buffer(BufferKind::Kernel, base);
    roots.push_back({stored(node), buffer, graph::strides_of(meta(base)), 0, current_});
  }
  if (id != base) program.places[id] = {buffer, offset_between(base, id)};
  return buffer;
}

bool Lowering::holds(NodeId id, const TensorMeta& meta) const {
  const Node& node = dag[id];
  if (node.kind != NodeKind::Leaf) return false;
  const Buffer& buffer = program.buffers[node.buffer()];
  const Sizes sizes = graph::sizes_of(meta), strides = graph::strides_of(meta);
  if ((buffer.kind != BufferKind::Extern && buffer.kind != BufferKind::Kernel) || buffer.dtype != meta.dtype ||
      buffer.sizes != sizes || buffer.strides != strides || node.sizes != sizes || node.data[1] != 0) {
    return false;
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1 && node.data[2 + i] != strides[i]) return false;
  }
  return true;
}

void Lowering::assemble(ValueId id, const std::vector<Piece>& pieces) {
  const BufferId buffer = add_buffer(BufferKind::Kernel, id);
  for (const Piece& piece : pieces) roots.push_back({piece.node, buffer, piece.strides, piece.offset, current_});
  add_leaf(id, buffer);
  node_origin.resize(dag.size(), current_);
}

void Lowering::scatter(ValueId id, T base, NodeId scatter) {
  const BufferId buffer = add_buffer(BufferKind::Kernel, id);
  const Sizes strides = graph::strides_of(meta(id));
  const NodeId whole = broadcast(base, graph::sizes_of(meta(id))).id;
  roots.push_back({dag.apart(whole), buffer, strides, 0, current_});
  roots.push_back({dag.copy(scatter), buffer, strides, 0, current_});
  add_leaf(id, buffer);
  node_origin.resize(dag.size(), current_);
}

NodeId Lowering::leaf_of(ValueId id) {
  const BufferId buffer = materialise(id);
  const TensorMeta& meta = this->meta(id);
  return dag.leaf(buffer, loops::value_dtype(*loop_dtype(meta.dtype)), graph::sizes_of(meta), graph::strides_of(meta),
                  program.places[id].offset);
}

void Lowering::add_extern(int32_t index) {
  const AtenNode& node = graph().aten_nodes[index];
  graph::for_each_operand(node, [&](ValueId id) {
    const BufferId buffer = materialise(id);
    const bool looks_around = ops::is_kind(ops::operator_of(node.op), ops::reads_storage);
    if (passes::traits_of(node.op).aliases || looks_around) program.buffers[buffer].escapes = true;
  });
  externs.push_back({index, dag.size()});
  for (const ValueId id : node.results) {
    if (id == kNoValue) continue;
    const BufferId buffer = add_buffer(BufferKind::Extern, id);
    program.buffers[buffer].node = index;
    add_leaf(id, buffer);
  }
  node_origin.resize(dag.size(), index);
}

void Lowering::finish_outputs() {
  const graph::Graph& graph = this->graph();
  for (const auto& write : program.functional.writes) {
    // Nothing to do where an input is written with itself.
    materialise(write.value);
  }
  std::vector<bool> needed(graph.values.size(), false);
  for (const ValueId id : graph.outputs) {
    const BufferId buffer = materialise(id);
    program.buffers[buffer].escapes = true;
    needed[id] = true;
  }
  // The views that lead to outputs, and their bases.
  for (int32_t i = static_cast<int32_t>(graph.aten_nodes.size()); i-- > 0;) {
    const AtenNode& node = graph.aten_nodes[i];
    if (!passes::traits_of(node.op).view) continue;
    if (std::none_of(node.results.begin(), node.results.end(),
                     [&](ValueId id) { return id != kNoValue && needed[id]; }))
      continue;
    program.output_views.push_back(i);
    needed[std::get<ValueId>(node.args[0])] = true;
  }
  std::reverse(program.output_views.begin(), program.output_views.end());
}

}  // namespace magneto::lower
