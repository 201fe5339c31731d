#include "graph/partition.h"

#include <algorithm>
#include <set>

#include "graph/aliases.h"
#include "graph/stages.h"
#include "graph/symbols.h"

namespace magneto::graph {
namespace {

using shapes::Expr;

void rename(PyArg& arg, const std::vector<ValueId>& map) {
  const bool tensor = arg.kind == PyArg::Kind::Value || arg.kind == PyArg::Kind::Number;
  if (tensor && arg.value != kNoValue) arg.value = map.at(arg.value);
  for (PyArg& item : arg.items) rename(item, map);
}

/// Nodes of one kind in a row.
struct Span {
  size_t begin, end;
  bool called;
};

std::vector<Span> spans_of(const Graph& graph, const NodeFlags& flags, const std::vector<size_t>& cuts) {
  std::vector<bool> called = flags.called;
  called.resize(graph.aten_nodes.size());
  for (const SymbolBinding& symbol : graph.symbols_of(ValueKind::Result)) {
    called[graph.values[symbol.value].producer] = true;
  }
  std::vector<Span> spans;
  for (size_t i = 0; i < called.size(); ++i) {
    const bool cut = std::ranges::binary_search(cuts, i);
    if (spans.empty() || cut || spans.back().called != called[i]) spans.push_back({i, i, called[i]});
    spans.back().end = i + 1;
  }
  return spans;
}

class Splitter {
 public:
  Splitter(const Graph& graph, const NodeFlags& flags, const std::vector<size_t>& cuts)
      : graph_(graph), view_(flags.view), spans_(spans_of(graph, flags, cuts)) {
    view_.resize(graph.aten_nodes.size());
  }

  std::vector<Subgraph> run() {
    std::vector<Subgraph> parts;
    for (const Span& span : spans_) parts.push_back(make(span));
    if (!bound_) return {};
    find_outputs(parts);
    return parts;
  }

  /// Of each part: behind its last operator.
  std::vector<size_t> ends() const {
    std::vector<size_t> ends;
    for (const Span& span : spans_) ends.push_back(span.end);
    return ends;
  }

 private:
  Subgraph make(const Span& span) {
    Subgraph part;
    part.called = span.called;
    map_.assign(graph_.values.size(), kNoValue);
    for (size_t i = span.begin; i < span.end; ++i) {
      for_each_operand(graph_.aten_nodes[i], [&](ValueId id) { bring(part, id); });
      add(part.graph, graph_.aten_nodes[i]);
    }
    add_torch_nodes(part.graph);
    bind_symbols(part, span);
    maps_.push_back(map_);
    return part;
  }

  /// Makes a value of the whole graph one of the part.
  void bring(Subgraph& part, ValueId id) {
    if (map_[id] != kNoValue) return;
    const Value& value = graph_.values[id];
    if (value.kind == ValueKind::Constant) {
      map_[id] = part.graph.add_constant(value.constant);
      return;
    }
    if (!part.called && value.producer >= 0 && view_[value.producer]) {
      const AtenNode& node = graph_.aten_nodes[value.producer];
      for_each_operand(node, [&](ValueId operand) { bring(part, operand); });
      add(part.graph, node);
      return;
    }
    map_[id] = part.graph.add_input(value.name.empty() ? "%" + std::to_string(id) : value.name, value.meta);
    part.inputs.push_back(id);
  }

  void add(Graph& to, AtenNode node) {
    for (AtenArg& arg : node.args) graph::rename(arg, map_);
    for (ValueId& id : node.results) {
      // In place, it is an operand, which has its name.
      if (id == kNoValue) continue;
      if (map_[id] == kNoValue)
        map_[id] = to.add_result(graph_.values[id].meta, static_cast<int32_t>(to.aten_nodes.size()));
      id = map_[id];
    }
    to.aten_nodes.push_back(std::move(node));
  }

  void add_torch_nodes(Graph& to) {
    to.without_torch_function = graph_.without_torch_function;
    int32_t last = -1;
    for (AtenNode& node : to.aten_nodes) {
      if (node.torch_node < 0) continue;
      if (node.torch_node != last) {
        last = node.torch_node;
        TorchNode torch = graph_.torch_nodes[last];
        graph::rename(torch, map_);
        to.torch_nodes.push_back(std::move(torch));
      }
      node.torch_node = static_cast<int32_t>(to.torch_nodes.size()) - 1;
    }
  }

  /// Each symbol in the part is found in an input of it, or in a result.
  void bind_symbols(Subgraph& part, const Span& span) {
    std::set<int32_t> symbols;
    size_t bound = 0;
    do {  // a value that says a number may have others in its sizes; in a check a symbol stands as a value
      bound = symbols.size();
      for_each_size(part.graph, [&](Expr& size) {
        shapes::any_leaf(size, [&](Expr leaf) {
          symbols.insert(leaf.id());
          return false;
        });
      });
      for (const int32_t symbol : symbols) {
        if (!is_found_later(symbol, span)) bring(part, binding_of(symbol).value);
      }
    } while (symbols.size() != bound);
    for (const int32_t symbol : symbols) {
      if (is_found_later(symbol, span)) {
        // Operators that run one by one need no sizes of what they give.
        bound_ = bound_ && part.called;
        continue;
      }
      SymbolBinding binding = binding_of(symbol);
      binding.value = map_[binding.value];
      part.graph.symbols.push_back(binding);
    }
    if (!part.called && !graph_.symbols.empty()) name_anew(part.graph);
  }

  /// Where two sizes turn out to be the same, the one that is found later may stand for both.
  bool is_found_later(int32_t symbol, const Span& span) const {
    const int32_t producer = graph_.values[binding_of(symbol).value].producer;
    return producer >= 0 && static_cast<size_t>(producer) >= span.end;
  }

  const SymbolBinding& binding_of(int32_t symbol) const {
    return *std::ranges::find(graph_.symbols, symbol, &SymbolBinding::symbol);
  }

  /// To a part behind, what was found is a size like others.
  void name_anew(Graph& part) const {
    const int32_t most = std::ranges::max(graph_.symbols, {}, &SymbolBinding::symbol).symbol;
    const auto name = [&](int32_t symbol) { return symbol >= 0 ? symbol : std::max(most, -1) - symbol; };
    for_each_size(part, [&](Expr& size) {
      size = shapes::substitute(size, [&](Expr leaf) -> std::optional<Expr> {
        const int32_t id = name(leaf.id());
        return leaf.kind() == shapes::ExprKind::Symbol ? Expr::symbol(id) : Expr::value(id);
      });
    });
    for (SymbolBinding& symbol : part.symbols) symbol.symbol = name(symbol.symbol);
  }

  bool made_in(size_t id, const Span& span) const {
    const auto producer = static_cast<size_t>(graph_.values[id].producer);
    return span.begin <= producer && producer < span.end;
  }

  /// What later parts and the caller read leaves the part that makes it.
  void find_outputs(std::vector<Subgraph>& parts) {
    std::vector<bool> leaves(graph_.values.size(), false);
    for (const ValueId id : graph_.outputs) leaves[id] = true;
    for (size_t p = parts.size(); p-- > 0;) {
      Subgraph& part = parts[p];
      for (size_t id = 0; id < maps_[p].size(); ++id) {
        const ValueId own = maps_[p][id];
        if (own == kNoValue || part.graph.values[own].kind != ValueKind::Result || !leaves[id]) continue;
        if (!made_in(id, spans_[p])) continue;  // a view that was made before
        part.outputs.push_back(static_cast<ValueId>(id));
        part.graph.outputs.push_back(own);
      }
      for (const ValueId id : part.inputs) {
        if (leaves[id]) continue;
        part.dead.push_back(id);
        leaves[id] = true;
      }
    }
  }

  const Graph& graph_;
  std::vector<bool> view_;
  const std::vector<Span> spans_;
  bool bound_ = true;                       // no compiled part has sizes that are found behind it
  std::vector<ValueId> map_;                // of the part that is being made
  std::vector<std::vector<ValueId>> maps_;  // of all
};

}  // namespace

void rename(AtenArg& arg, const std::vector<ValueId>& map) {
  const auto to = [&](ValueId& id) {
    if (id != kNoValue) id = map.at(id);
  };
  if (auto* id = std::get_if<ValueId>(&arg)) to(*id);
  if (auto* ids = std::get_if<std::vector<ValueId>>(&arg)) std::ranges::for_each(*ids, to);
}

void rename(TorchNode& node, const std::vector<ValueId>& map) {
  for (PyArg& arg : node.args) rename(arg, map);
  for (auto& [name, arg] : node.kwargs) rename(arg, map);
  std::erase_if(node.results, [&](TorchResult& result) {
    if (result.value != kNoValue) result.value = map.at(result.value);
    return result.value == kNoValue;
  });
}

std::vector<Subgraph> partition(const Graph& graph, const NodeFlags& flags) {
  return partition_in_stages(graph, flags, {}).parts;
}

Stages partition_in_stages(const Graph& graph, const NodeFlags& flags, const std::vector<size_t>& nodes) {
  const Aliases aliases(graph);
  for (ValueId id = 0; id < static_cast<ValueId>(graph.values.size()); ++id) {
    if (graph.values[id].kind == ValueKind::Constant && aliases.needs_copy(id)) return {};
  }
  Splitter splitter(graph, flags, nodes);
  Stages stages{.parts = splitter.run(), .ends = {}};
  const std::vector<size_t> ends = splitter.ends();
  for (size_t part = 0; part < stages.parts.size(); ++part) {
    const bool is_last = part + 1 == stages.parts.size();
    if (is_last || std::ranges::binary_search(nodes, ends[part])) stages.ends.push_back(part + 1);
  }
  return stages;
}

}  // namespace magneto::graph
