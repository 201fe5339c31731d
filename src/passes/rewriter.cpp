#include "passes/rewriter.h"

#include "graph/partition.h"

namespace magneto::passes {

using graph::AtenArg;
using graph::AtenNode;
using graph::Graph;
using graph::kNoValue;
using graph::ValueId;
using graph::ValueKind;

Rewriter::Rewriter(Graph old) : old_(std::move(old)), map_(old_.values.size(), kNoValue) {
  for (const ValueId id : old_.inputs) map_[id] = graph_.add_input(old_.values[id].name, old_.values[id].meta);
  for (size_t id = 0; id < old_.values.size(); ++id) {
    if (old_.values[id].kind != ValueKind::Constant) continue;
    // The type as it was, not the tensor's: a constant may stand for a fake that was made from it.
    map_[id] = graph_.add_constant(old_.values[id].constant);
  }
  for (graph::SymbolBinding symbol : old_.symbols) {
    symbol.value = map_[symbol.value];
    graph_.symbols.push_back(symbol);
  }
  graph_.aten_nodes.reserve(old_.aten_nodes.size());
}

void Rewriter::set(ValueId old, ValueId now) {
  map_.at(old) = now;
  // A data-dependent size is found in what is made first: later values are what was written to it.
  for (size_t i = 0; i < old_.symbols.size(); ++i) {
    if (old_.symbols[i].value == old && graph_.symbols[i].value == kNoValue) graph_.symbols[i].value = now;
  }
}

std::vector<AtenArg> Rewriter::map_args(const AtenNode& node) const {
  std::vector<AtenArg> args = node.args;
  for (AtenArg& arg : args) graph::rename(arg, map_);
  return args;
}

std::vector<ValueId> Rewriter::add(const c10::OperatorHandle& op, std::vector<AtenArg> args,
                                   const std::vector<const graph::TensorMeta*>& results, int32_t torch_node) {
  AtenNode node{op, std::move(args), {}, torch_node};
  const auto index = static_cast<int32_t>(graph_.aten_nodes.size());
  for (const graph::TensorMeta* meta : results)
    node.results.push_back(meta ? graph_.add_result(*meta, index) : kNoValue);
  graph_.aten_nodes.push_back(std::move(node));
  return graph_.aten_nodes.back().results;
}

void Rewriter::copy(const AtenNode& node) {
  std::vector<const graph::TensorMeta*> metas;
  for (const ValueId id : node.results) metas.push_back(id == kNoValue ? nullptr : &old_.values[id].meta);
  const std::vector<ValueId> results = add(node.op, map_args(node), metas, node.torch_node);
  for (size_t i = 0; i < results.size(); ++i) {
    if (node.results[i] != kNoValue) set(node.results[i], results[i]);
  }
}

Graph Rewriter::finish(std::vector<ValueId> outputs) {
  graph_.outputs = std::move(outputs);
  graph_.torch_nodes = std::move(old_.torch_nodes);
  graph_.without_torch_function = old_.without_torch_function;
  std::erase_if(graph_.symbols, [](const graph::SymbolBinding& symbol) { return symbol.value == kNoValue; });
  // A tensor that no operator needs any more has no value: the call's text shows None.
  for (graph::TorchNode& node : graph_.torch_nodes) graph::rename(node, map_);
  return std::move(graph_);
}

Graph Rewriter::finish() {
  std::vector<ValueId> outputs;
  for (const ValueId id : old_.outputs) outputs.push_back(map(id));
  return finish(std::move(outputs));
}

const c10::IValue& constant_of(const AtenArg& arg) {
  if (const auto* constant = std::get_if<c10::IValue>(&arg)) return *constant;
  throw Unsupported("a dynamic size, where a number is needed");
}

bool is_one(const graph::AtenArg& arg) {
  const auto* number = std::get_if<c10::IValue>(&arg);
  return number && number->isScalar() && number->toScalar().toDouble() == 1;
}

c10::OperatorHandle find_op(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

}  // namespace magneto::passes
