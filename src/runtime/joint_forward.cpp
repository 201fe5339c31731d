// The forward half of a joint graph.
#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>

#include "runtime/joint_computation.h"

namespace magneto::runtime {

std::vector<at::Generator> generators_of(const graph::Graph& graph) {
  std::vector<at::Generator> generators;
  for (const graph::AtenNode& node : graph.aten_nodes) {
    if (!node.op.hasTag(at::Tag::nondeterministic_seeded)) continue;
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    for (const graph::AtenArg& arg : node.args) {
      const auto* constant = std::get_if<c10::IValue>(&arg);
      if (constant && constant->isGenerator()) generator = constant->toGenerator();
    }
    if (std::ranges::find(generators, generator) == generators.end()) generators.push_back(std::move(generator));
  }
  return generators;
}

graph::Graph forward_of(const graph::Graph& graph, const autograd::Joint& joint) {
  graph::Graph forward = graph;
  forward.outputs.clear();
  for (const autograd::Results::Computed& computed : joint.results.computed) forward.outputs.push_back(computed.value);
  forward.torch_nodes.clear();
  for (graph::AtenNode& node : forward.aten_nodes) node.torch_node = -1;
  for (graph::Value& value : forward.values) value.meta.requires_grad = false;
  for (const autograd::Backward& backward : joint.backwards) {
    for (const graph::ValueId id : backward.saved) {
      const bool known = graph.values[id].kind == graph::ValueKind::Input || std::ranges::count(forward.outputs, id);
      if (!known) forward.outputs.push_back(id);
    }
  }
  return forward;
}

}  // namespace magneto::runtime
