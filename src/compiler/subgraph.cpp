#include "compiler/subgraph.h"

#include <algorithm>
#include <unordered_map>

#include "graph/aliases.h"
#include "passes/effects.h"

namespace magneto::runtime {
namespace {

using graph::AtenNode;
using graph::kNoValue;
using graph::ValueId;

class Extractor {
 public:
  explicit Extractor(const graph::Graph& whole) : whole_(whole) {}

  void add(int32_t index) {
    AtenNode node = whole_.aten_nodes[index];
    node.torch_node = -1;
    for (graph::AtenArg& arg : node.args) {
      if (auto* id = std::get_if<ValueId>(&arg)) {
        *id = operand(*id);
      } else if (auto* ids = std::get_if<std::vector<ValueId>>(&arg)) {
        for (ValueId& item : *ids) item = operand(item);
      }
    }
    for (ValueId& id : node.results) {
      if (id == kNoValue) continue;
      const ValueId made = out_.add_result(whole_.values[id].meta, static_cast<int32_t>(out_.aten_nodes.size()));
      known_[id] = made;
      id = made;
    }
    out_.aten_nodes.push_back(std::move(node));
  }

  graph::Graph finish(const std::vector<int32_t>& operators) {
    std::vector<bool> read(whole_.values.size(), false);
    for (size_t i = 0; i < whole_.aten_nodes.size(); ++i) {
      if (std::binary_search(operators.begin(), operators.end(), static_cast<int32_t>(i))) continue;
      graph::for_each_operand(whole_.aten_nodes[i], [&](ValueId id) { read[id] = true; });
    }
    for (const ValueId id : whole_.outputs) read[id] = true;
    for (const int32_t index : operators) {
      for (const ValueId id : whole_.aten_nodes[index].results) {
        if (id != kNoValue && read[id]) out_.outputs.push_back(known_.at(id));
      }
    }
    return std::move(out_);
  }

 private:
  ValueId operand(ValueId id) {
    if (id == kNoValue) return id;
    if (const auto found = known_.find(id); found != known_.end()) return found->second;
    const graph::Value& value = whole_.values[id];
    if (value.kind == graph::ValueKind::Constant) {
      out_.values.push_back(value);
      return known_[id] = static_cast<ValueId>(out_.values.size() - 1);
    }
    if (value.producer >= 0 && passes::traits_of(whole_.aten_nodes[value.producer].op).view) {
      add(value.producer);
      return known_.at(id);
    }
    return known_[id] = out_.add_input({}, value.meta);
  }

  const graph::Graph& whole_;
  graph::Graph out_;
  std::unordered_map<ValueId, ValueId> known_;
};

}  // namespace

graph::Graph subgraph(const graph::Graph& whole, const std::vector<int32_t>& operators) {
  Extractor extractor(whole);
  for (const int32_t index : operators) extractor.add(index);
  return extractor.finish(operators);
}

}  // namespace magneto::runtime
