// Graphs with operators that are called between compiled parts.
#include <algorithm>
#include <array>

#include "graph/partition.h"
#include "passes/passes.h"
#include "runtime/computation.h"
#include "runtime/plan/failed_call.h"

namespace magneto::runtime {

namespace {

class PartedComputation final : public TensorComputation {
 public:
  struct Step {
    std::shared_ptr<const TensorComputation> computation;
    std::vector<graph::ValueId> inputs, outputs, dead;
    std::vector<c10::OperatorHandle> called;  // as they are
  };

  PartedComputation(const graph::Graph& graph, std::vector<Step> steps)
      : steps_(std::move(steps)), inputs_(graph.inputs), outputs_(graph.outputs), values_(graph.values.size()) {}

  void compute(const at::Tensor* const* inputs, at::Tensor* outputs) const override {
    std::vector<at::Tensor> values(values_);
    for (size_t i = 0; i < inputs_.size(); ++i) values[inputs_[i]] = *inputs[i];
    std::vector<const at::Tensor*> given;
    std::vector<at::Tensor> made;
    for (const Step& step : steps_) {
      given.clear();
      for (const graph::ValueId id : step.inputs) given.push_back(&values[id]);
      made.assign(step.outputs.size(), {});
      try {
        step.computation->compute(given.data(), made.data());
      } catch (...) {
        for (const Step* earlier = steps_.data(); earlier != &step; ++earlier) {
          for (const c10::OperatorHandle& op : earlier->called) note_earlier_call(op);
        }
        throw;
      }
      for (size_t i = 0; i < made.size(); ++i) values[step.outputs[i]] = std::move(made[i]);
      for (const graph::ValueId id : step.dead) values[id].reset();
    }
    for (size_t i = 0; i < outputs_.size(); ++i) outputs[i] = values[outputs_[i]];
  }
  size_t input_count() const override { return inputs_.size(); }
  size_t output_count() const override { return outputs_.size(); }
  OnError on_error() const override { return OnError::Between; }

  std::unique_ptr<TensorComputation> tensors_for_other_weights() const override {
    auto other = std::make_unique<PartedComputation>(*this);
    bool any = false;
    for (Step& step : other->steps_) {
      std::unique_ptr<TensorComputation> own = step.computation->tensors_for_other_weights();
      any = any || own;
      if (own) step.computation = std::move(own);
    }
    return any ? std::move(other) : nullptr;
  }

  std::string print() const override {
    std::string text;
    for (size_t i = 0; i < steps_.size(); ++i) {
      text += "part " + std::to_string(i + 1) + " of " + std::to_string(steps_.size()) + ":\n";
      text += steps_[i].computation->print();
    }
    return text;
  }

 private:
  std::vector<Step> steps_;
  std::vector<graph::ValueId> inputs_, outputs_;
  size_t values_;
};

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

}  // namespace

Compiled make_partitioned_computation(const graph::Graph& graph, const CompileWay& way, graph::StageSink& sink) {
  Compiled result;
  std::vector<graph::Subgraph> parts = graph::partition(graph, passes::node_flags(graph));
  if (parts.empty()) {
    result.computation = make_aten_computation(graph);
    result.uncompiled =
        "data-dependent sizes, with constants that are written or handed out, or in front of where they are "
        "found";
    return result;
  }
  PartsSink texts(sink);
  std::vector<PartedComputation::Step> steps;
  for (graph::Subgraph& part : parts) {
    Compiled made;
    std::vector<c10::OperatorHandle> called;
    if (part.called) {
      made.computation = make_aten_computation(part.graph);
      for (const graph::AtenNode& node : part.graph.aten_nodes) {
        made.externs.push_back(node.op.operator_name().name);
        called.push_back(node.op);
      }
    } else {
      CompileWay own{.interpret = way.interpret, .operators_only = way.operators_only, .whole = true};
      for (const graph::ValueId id : part.inputs) {
        const auto input = std::ranges::find(graph.inputs, id);
        const auto place = static_cast<size_t>(input - graph.inputs.begin());
        own.watched.push_back(place < way.watched.size() && way.watched[place]);
      }
      made = make_compiled_computation(part.graph, own, texts);
    }
    steps.push_back({std::move(made.computation), part.inputs, part.outputs, part.dead, std::move(called)});
    if (result.uncompiled.empty()) result.uncompiled = made.uncompiled;
    result.kernels += made.kernels;
    result.instructions += made.instructions;
    result.cut += made.cut;
    result.kept |= made.kept;
    result.externs.insert(result.externs.end(), made.externs.begin(), made.externs.end());
  }
  texts.hand_on();
  result.computation = std::make_unique<PartedComputation>(graph, std::move(steps));
  return result;
}

}  // namespace magneto::runtime
