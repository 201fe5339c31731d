// The backward half of a joint graph.
#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>

#include "autograd/common_reads.h"
#include "autograd/joint.h"
#include "autograd/kept_gradients.h"
#include "graph/aliases.h"
#include "graph/kept_casts.h"
#include "graph/partition.h"
#include "graph/symbols.h"

namespace magneto::autograd {

namespace {

using graph::AtenNode;
using graph::Graph;
using graph::kNoValue;
using graph::ValueId;

class Splitter {
 public:
  Splitter(const Graph& joint, const JointRange& range, const std::vector<ValueId>& tangents, Backward& backward)
      : joint_(joint), range_(range), tangents_(tangents), out_(backward), map_(joint.values.size(), kNoValue) {}

  void run(const std::vector<ValueId>& gradients, const PartitionWay& way) {
    const std::vector<size_t> nodes = live_nodes(gradients);
    const std::vector<ValueId> reads = reads_of(nodes, gradients);
    const Partition parts = partition(joint_, range_, reads, way);
    out_.saved_bytes = parts.bytes;
    out_.eager_saved_bytes = parts.eager_bytes;
    out_.departures = parts.departures;
    for (size_t id = 0; id < parts.saved.size(); ++id) {
      if (parts.saved[id]) save(static_cast<ValueId>(id));
    }
    for (const ValueId id : parts.reread) name(id);
    for (const size_t node : nodes) {
      graph::for_each_operand(joint_.aten_nodes[node], [&](ValueId id) { make(id); });
      add(joint_.aten_nodes[node]);
    }
    for (const ValueId id : gradients) make(id);
    add_outputs(gradients);
    separate_gradients(out_.graph);
    bind_symbols();
    for (const ValueId id : parts.reread) {
      out_.graph.inputs.push_back(name(id));
      out_.saved.push_back(id);
    }
    out_.reread = parts.reread.size();
    for (const ValueId id : tangents_) out_.graph.inputs.push_back(name(id));
  }

 private:
  /// The backward's operators that some gradient needs, or that write.
  std::vector<size_t> live_nodes(const std::vector<ValueId>& gradients) const {
    std::vector<bool> live(joint_.values.size(), false);
    for (const ValueId id : gradients) live[id] = true;
    std::vector<size_t> nodes;
    for (size_t i = range_.end; i-- > range_.begin;) {
      const AtenNode& node = joint_.aten_nodes[i];
      const bool read = std::ranges::any_of(node.results, [&](ValueId id) { return id != kNoValue && live[id]; });
      if (!read && !graph::effects_of(node.op).writes) continue;
      nodes.push_back(i);
      graph::for_each_operand(node, [&](ValueId id) { live[id] = true; });
    }
    std::ranges::reverse(nodes);
    return nodes;
  }

  bool is_forward(ValueId id) const {
    const graph::Value& value = joint_.values[id];
    return value.kind == graph::ValueKind::Result && static_cast<size_t>(value.producer) < range_.forward;
  }

  /// What the backward reads of the forward, in the order of reading.
  std::vector<ValueId> reads_of(const std::vector<size_t>& nodes, const std::vector<ValueId>& gradients) const {
    std::vector<ValueId> reads;
    std::vector<bool> seen(joint_.values.size(), false);
    const auto read = [&](ValueId id) {
      const bool given = joint_.values[id].kind == graph::ValueKind::Input && !std::ranges::count(tangents_, id);
      if (seen[id] || !(given || is_forward(id))) return;
      seen[id] = true;
      reads.push_back(id);
    };
    for (const size_t node : nodes) graph::for_each_operand(joint_.aten_nodes[node], read);
    for (const ValueId id : gradients) read(id);
    return reads;
  }

  /// Computes a value of the forward again, and what that takes, unless it is there.
  void make(ValueId wanted) {
    std::vector<ValueId> open = {wanted};
    while (!open.empty()) {
      const ValueId id = open.back();
      if (map_[id] != kNoValue || !is_forward(id)) {
        open.pop_back();
        continue;
      }
      const AtenNode& node = joint_.aten_nodes[static_cast<size_t>(joint_.values[id].producer)];
      bool ready = true;
      graph::for_each_operand(node, [&](ValueId of) {
        if (map_[of] != kNoValue || !is_forward(of)) return;
        ready = false;
        open.push_back(of);
      });
      if (!ready) continue;
      out_.recomputed += !graph::effects_of(node.op).aliases;
      AtenNode again = node;
      if (graph::is_kept_cast(node)) graph::make_plain_cast(again);
      add(std::move(again));
    }
  }

  void save(ValueId id) {
    if (map_[id] != kNoValue) return;
    out_.graph.inputs.push_back(name(id));
    out_.saved.push_back(id);
  }

  /// The backward's name of a value that it does not compute.
  ValueId name(ValueId id) {
    if (map_[id] != kNoValue) return map_[id];
    const graph::Value& value = joint_.values[id];
    if (value.kind == graph::ValueKind::Constant) return map_[id] = out_.graph.add_constant(value.constant);
    graph::TensorMeta meta = value.meta;
    meta.requires_grad = false;
    map_[id] = out_.graph.add_input(value.name.empty() ? "%" + std::to_string(id) : value.name, std::move(meta));
    out_.graph.inputs.pop_back();  // saved values come first, whatever is named first
    return map_[id];
  }

  void add(AtenNode node) {
    std::set<ValueId> operands;
    graph::for_each_operand(node, [&](ValueId id) {
      operands.insert(id);
      name(id);
    });
    for (graph::AtenArg& arg : node.args) graph::rename(arg, map_);
    for (ValueId& id : node.results) {
      if (id == kNoValue) continue;
      ValueId& known = map_[id];
      if (known != kNoValue && operands.contains(id)) {  // in place
        id = known;
        continue;
      }
      graph::TensorMeta meta = joint_.values[id].meta;
      meta.requires_grad = false;
      id = out_.graph.add_result(std::move(meta), static_cast<int32_t>(out_.graph.aten_nodes.size()));
      if (known == kNoValue) known = id;  // else that one is saved, and others of the operator's results are not
    }
    node.torch_node = -1;
    out_.graph.aten_nodes.push_back(std::move(node));
  }

  void add_outputs(const std::vector<ValueId>& gradients) {
    std::vector<ValueId>& outputs = out_.graph.outputs;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const ValueId id = name(gradients[i]);
      const auto known = std::ranges::find(outputs, id);
      out_.leaves[i].gradient = static_cast<int32_t>(known - outputs.begin());
      if (known == outputs.end()) outputs.push_back(id);
    }
  }

  /// A symbol is found in a tensor that the backward is given anyway, if there is one that has it.
  void bind_symbols() {
    std::set<int32_t> symbols;
    size_t bound = 0;
    do {  // what is saved for one symbol may have others in its sizes
      bound = symbols.size();
      graph::for_each_size(out_.graph, [&](shapes::Expr& size) {
        shapes::any_leaf(size, [&](shapes::Expr leaf) {
          symbols.insert(leaf.id());
          return false;
        });
      });
      for (const int32_t symbol : symbols) bind(symbol);
    } while (symbols.size() != bound);
  }

  void bind(int32_t symbol) {
    if (std::ranges::count(out_.graph.symbols, symbol, &graph::SymbolBinding::symbol)) return;
    const auto known = std::ranges::find(joint_.symbols, symbol, &graph::SymbolBinding::symbol);
    if (known == joint_.symbols.end()) throw std::logic_error("a size of the backward is bound to nothing");
    graph::SymbolBinding binding = *known;
    std::vector<ValueId> given = out_.graph.inputs;
    for (const ValueId id : tangents_) given.push_back(name(id));
    for (const ValueId id : given) {
      const auto& symbolic = out_.graph.values[id].meta.symbolic;
      if (!symbolic) continue;
      const auto size = std::ranges::find(symbolic->sizes, shapes::Expr::symbol(symbol));
      if (size == symbolic->sizes.end()) continue;
      binding.value = id;
      binding.dim = static_cast<int32_t>(size - symbolic->sizes.begin());
      out_.graph.symbols.push_back(binding);
      return;
    }
    save(binding.value);
    binding.value = map_[binding.value];
    out_.graph.symbols.push_back(binding);
  }

  const Graph& joint_;
  const JointRange range_;
  const std::vector<ValueId>& tangents_;
  Backward& out_;
  std::vector<ValueId> map_;
};

}  // namespace

void split(const Graph& joint, const JointRange& range, const std::vector<ValueId>& tangents,
           const std::vector<ValueId>& gradients, const PartitionWay& way, Backward& backward) {
  if (!way.recompute) return Splitter(joint, range, tangents, backward).run(gradients, way);
  std::vector<ValueId> wanted = gradients;
  const std::optional<Graph> merged = with_common_reads(joint, range, way, wanted);
  Splitter(merged ? *merged : joint, range, tangents, backward).run(wanted, way);
}

}  // namespace magneto::autograd
