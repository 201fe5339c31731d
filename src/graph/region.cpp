#include "graph/region.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <set>

#include "graph/aliases.h"
#include "graph/partition.h"
#include "graph/symbols.h"
#include "graph/torch_values.h"

namespace magneto::graph {
namespace {

using shapes::Expr;

/// The value as an input of a graph inside, where nothing requires gradients.
ValueId add_as_input(Graph& inside, const Graph& whole, ValueId id) {
  const Value& value = whole.values[id];
  TensorMeta meta = value.meta;
  meta.requires_grad = false;
  return inside.add_input(value.name.empty() ? "%" + std::to_string(id) : value.name, std::move(meta));
}

class Cutter {
 public:
  Cutter(const Graph& whole, size_t first) : whole_(whole), map_(whole.values.size(), kNoValue), first_(first) {}

  Cut run(const std::vector<ValueId>& outputs) {
    for (size_t i = first_; i < whole_.aten_nodes.size(); ++i) {
      for_each_operand(whole_.aten_nodes[i], [&](ValueId id) { bring(id); });
      add(whole_.aten_nodes[i]);
    }
    for (const ValueId id : outputs) {
      bring(id);
      cut_.graph.outputs.push_back(map_[id]);
    }
    add_torch_nodes();
    return std::move(cut_);
  }

 private:
  TensorMeta meta_of(ValueId id) const {
    TensorMeta meta = whole_.values[id].meta;
    meta.requires_grad = false;
    return meta;
  }

  void bring(ValueId id) {
    if (map_[id] != kNoValue) return;
    const Value& value = whole_.values[id];
    if (value.kind == ValueKind::Constant) {
      map_[id] = cut_.graph.add_constant(value.constant);
      return;
    }
    map_[id] = add_as_input(cut_.graph, whole_, id);
    cut_.inputs.push_back(id);
  }

  void add(AtenNode node) {
    for (AtenArg& arg : node.args) rename(arg, map_);
    for (ValueId& id : node.results) {
      if (id == kNoValue) continue;
      if (map_[id] == kNoValue)
        map_[id] = cut_.graph.add_result(meta_of(id), static_cast<int32_t>(cut_.graph.aten_nodes.size()));
      id = map_[id];
    }
    cut_.graph.aten_nodes.push_back(std::move(node));
  }

  void add_torch_nodes() {
    Graph& to = cut_.graph;
    to.without_torch_function = whole_.without_torch_function;
    int32_t last = -1;
    for (AtenNode& node : to.aten_nodes) {
      if (node.torch_node < 0) continue;
      if (node.torch_node != last) {
        last = node.torch_node;
        TorchNode torch = whole_.torch_nodes[last];
        // What the operators below do not read (the other one of `x.view_as(y)`).
        for (const PyArg& arg : torch.args) for_each_value(arg, [&](ValueId id) { bring(id); });
        for (const auto& [name, arg] : torch.kwargs) for_each_value(arg, [&](ValueId id) { bring(id); });
        rename(torch, map_);
        to.torch_nodes.push_back(std::move(torch));
      }
      node.torch_node = static_cast<int32_t>(to.torch_nodes.size()) - 1;
    }
  }

  const Graph& whole_;
  Cut cut_;
  std::vector<ValueId> map_;
  const size_t first_;
};

using Regions = std::vector<std::shared_ptr<Region>>;

void add_symbols(const Graph& graph, std::set<int32_t>& symbols) {
  Graph copy = graph;
  for_each_size(copy, [&](Expr& size) {
    shapes::any_leaf(size, [&](Expr leaf) {
      symbols.insert(leaf.id());
      return false;
    });
  });
  for_each_region(graph, [&](const Region& region) { add_symbols(region.graph, symbols); });
}

std::shared_ptr<Region> owned_region(const Regions& owned, const Region* region) {
  return *std::ranges::find(owned, region, [](const auto& each) { return each.get(); });
}

void replace_region(TorchNode& node, const Region* old, const std::shared_ptr<const Region>& by) {
  for (PyArg& arg : node.args) {
    if (arg.kind == PyArg::Kind::Region && arg.region.get() == old) arg.region = by;
  }
}

/// Gives each operator regions of its own: a backward runs the operators of its forward again, and the same region may
/// be given other operands there.
void separate(Graph& graph, Regions& owned, std::set<const Region*>& seen) {
  for (AtenNode& node : graph.aten_nodes) {
    for (AtenArg& arg : node.args) {
      auto* region = std::get_if<std::shared_ptr<const Region>>(&arg);
      if (!region) continue;
      std::shared_ptr<Region> own = owned_region(owned, region->get());
      if (!seen.insert(own.get()).second) {
        own = owned.emplace_back(std::make_shared<Region>(*own));
        seen.insert(own.get());
        if (node.torch_node >= 0) replace_region(graph.torch_nodes[node.torch_node], region->get(), own);
        *region = own;
      }
      separate(own->graph, owned, seen);
    }
  }
}

/// One operator with regions.
class Closer {
 public:
  Closer(Graph& around, AtenNode& node, const Regions& owned) : around_(around), node_(node) {
    for (AtenArg& arg : node.args) {
      const auto* region = std::get_if<std::shared_ptr<const Region>>(&arg);
      if (!region) continue;
      regions_.push_back(owned_region(owned, region->get()).get());
    }
  }

  void run() {
    std::set<int32_t> symbols;
    for (const Region* region : regions_) add_symbols(region->graph, symbols);
    for (const int32_t symbol : symbols) bind(symbol);
    if (node_.torch_node >= 0) give_sizes(around_.torch_nodes[node_.torch_node], symbols);
  }

 private:
  /// The operands stand in the last argument.
  std::vector<ValueId>& operands() { return std::get<std::vector<ValueId>>(node_.args.back()); }

  void bind(int32_t symbol) {
    const auto outside = std::ranges::find(around_.symbols, symbol, &SymbolBinding::symbol);
    TORCH_INTERNAL_ASSERT(outside != around_.symbols.end(), "a region has a size that the graph around does not know");
    SymbolBinding binding = *outside;
    size_t place = 0;
    binding.dim = -2;
    for (; place < operands().size() && binding.dim == -2; ++place) {
      const auto& geometry = around_.values[operands()[place]].meta.symbolic;
      for (size_t dim = 0; geometry && dim < geometry->sizes.size(); ++dim) {
        if (geometry->sizes[dim] == Expr::symbol(symbol)) binding.dim = static_cast<int32_t>(dim);
      }
    }
    if (binding.dim == -2) {
      place = add_operand(outside->value) + 1;
      binding.dim = outside->dim;
    }
    for (Region* region : regions_) {
      const std::vector<ValueId>& inputs = region->graph.inputs;  // its operands are the last ones
      binding.value = inputs[inputs.size() - operands().size() + place - 1];
      region->graph.symbols.push_back(binding);
    }
  }

  size_t add_operand(ValueId id) {
    operands().push_back(id);
    for (Region* region : regions_) add_as_input(region->graph, around_, id);
    if (node_.torch_node >= 0) {
      PyArg value;
      value.kind = PyArg::Kind::Value;
      value.value = id;
      around_.torch_nodes[node_.torch_node].args.back().items.push_back(std::move(value));
    }
    return operands().size() - 1;
  }

  void give_sizes(TorchNode& node, const std::set<int32_t>& symbols) {
    std::vector<PyArg> sizes;
    for (const int32_t symbol : symbols) {
      PyArg& size = sizes.emplace_back();
      size.kind = PyArg::Kind::Size;
      size.size = Expr::symbol(symbol);
    }
    std::vector<PyArg>& items = node.args.back().items;
    items.insert(items.begin(), sizes.begin(), sizes.end());
  }

  Graph& around_;
  AtenNode& node_;
  std::vector<Region*> regions_;
};

}  // namespace

Cut cut(const Graph& whole, size_t first, const std::vector<ValueId>& outputs) {
  return Cutter(whole, first).run(outputs);
}

void set_inputs(Cut& cut, const Graph& whole, const std::vector<ValueId>& inputs) {
  std::vector<ValueId> own;
  for (const ValueId id : inputs) {
    const auto known = std::ranges::find(cut.inputs, id);
    if (known != cut.inputs.end()) {
      own.push_back(cut.graph.inputs[known - cut.inputs.begin()]);
      continue;
    }
    own.push_back(add_as_input(cut.graph, whole, id));
  }
  cut.graph.inputs = std::move(own);
  cut.inputs = inputs;
}

bool is_random(const Graph& graph) {
  const auto draws = [](const AtenNode& node) {
    if (!node.op.hasTag(at::Tag::nondeterministic_seeded)) return false;
    const auto& arguments = node.op.schema().arguments();
    for (size_t i = 0; i < node.args.size(); ++i) {
      const auto* constant = std::get_if<c10::IValue>(&node.args[i]);
      if (constant && arguments[i].name() == "dropout_p" && constant->toDouble() == 0) return false;
    }
    return true;
  };
  return std::ranges::any_of(graph.aten_nodes, draws);
}

static void close(Graph& graph, const Regions& owned) {
  for (AtenNode& node : graph.aten_nodes) {
    if (!has_regions(node)) continue;
    Closer(graph, node, owned).run();
    for (const AtenArg& arg : node.args) {
      const auto* region = std::get_if<std::shared_ptr<const Region>>(&arg);
      if (region) close(owned_region(owned, region->get())->graph, owned);
    }
  }
}

void close_regions(Graph& graph, std::vector<std::shared_ptr<Region>>& owned) {
  std::set<const Region*> seen;
  separate(graph, owned, seen);
  close(graph, owned);
}

}  // namespace magneto::graph
