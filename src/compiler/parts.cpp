// Graphs of which operators are called as they are: what stands between these is compiled.
#include <algorithm>
#include <array>

#include "compiler/pipeline.h"
#include "graph/stages.h"
#include "passes/passes.h"
#include "runtime/partitioned_computation.h"

namespace magneto::compiler {
namespace {

/// Gathers what the parts offer; handed on as one text a stage.
class PartsSink final : public graph::StageSink {
 public:
  explicit PartsSink(graph::StageSink& whole) : whole_(whole) {}

  bool wanted(graph::Stage stage) const override { return whole_.wanted(stage); }
  bool insists_on(graph::Stage stage) const override { return whole_.insists_on(stage); }
  void take(graph::Stage stage, const std::string& text) override { texts_[static_cast<size_t>(stage)] += text; }
  void hand_on() {
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (!texts_[i].empty()) whole_.take(static_cast<graph::Stage>(i), texts_[i]);
    }
  }

 private:
  graph::StageSink& whole_;
  std::array<std::string, std::size(graph::kStages)> texts_;
};

std::vector<c10::OperatorHandle> operators_of(const graph::Subgraph& part) {
  std::vector<c10::OperatorHandle> operators;
  for (const graph::AtenNode& node : part.graph.aten_nodes) operators.push_back(node.op);
  return operators;
}

}  // namespace

std::unique_ptr<runtime::TensorComputation> call_parts(const graph::Graph& graph, const std::vector<size_t>& ends) {
  if (ends.empty()) return runtime::make_aten_computation(graph);
  const graph::NodeFlags flags{.called = std::vector<bool>(graph.aten_nodes.size(), true), .view = {}};
  const graph::Stages stages = graph::partition_in_stages(graph, flags, ends);
  std::vector<runtime::PartStep> steps;
  for (const graph::Subgraph& part : stages.parts) {
    steps.push_back(
        {runtime::make_aten_computation(part.graph), part.inputs, part.outputs, part.dead, operators_of(part)});
  }
  return std::make_unique<runtime::PartedComputation>(graph, std::move(steps), stages.ends);
}

Compiled compile_parts(const graph::Graph& graph, const CompileWay& way, graph::StageSink& sink) {
  Compiled result;
  graph::Stages stages = graph::partition_in_stages(graph, passes::node_flags(graph), way.ends);
  if (stages.parts.empty()) {
    result.computation = runtime::make_aten_computation(graph);
    result.uncompiled =
        "data-dependent sizes, with constants that are written or handed out, or in front of where they are "
        "found";
    return result;
  }
  PartsSink texts(sink);
  std::vector<runtime::PartStep> steps;
  for (graph::Subgraph& part : stages.parts) {
    Compiled made;
    std::vector<c10::OperatorHandle> called;
    if (part.called) {
      made.computation = runtime::make_aten_computation(part.graph);
      called = operators_of(part);
      for (const c10::OperatorHandle& op : called) made.externs.push_back(op.operator_name().name);
    } else {
      CompileWay own{.operators = way.operators, .whole = true, .place = way.place};
      for (const graph::ValueId id : part.inputs) {
        const auto input = std::ranges::find(graph.inputs, id);
        const auto place = static_cast<size_t>(input - graph.inputs.begin());
        own.watched.push_back(place < way.watched.size() && way.watched[place]);
      }
      made = compile_graph(part.graph, own, texts);
    }
    steps.push_back({std::move(made.computation), part.inputs, part.outputs, part.dead, std::move(called)});
    if (result.uncompiled.empty()) result.uncompiled = made.uncompiled;
    result.kernels += made.kernels;
    result.instructions += made.instructions;
    result.cut += made.cut;
    result.cached |= made.cached;
    result.externs.insert(result.externs.end(), made.externs.begin(), made.externs.end());
  }
  texts.hand_on();
  result.computation = std::make_unique<runtime::PartedComputation>(graph, std::move(steps), std::move(stages.ends));
  return result;
}

}  // namespace magneto::compiler
