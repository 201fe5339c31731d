#include "runtime/partitioned_computation.h"

#include "runtime/plan/failed_call.h"

namespace magneto::runtime {

PartedComputation::PartedComputation(const graph::Graph& graph, std::vector<PartStep> steps, std::vector<size_t> stages)
    : steps_(std::move(steps)),
      stages_(std::move(stages)),
      inputs_(graph.inputs),
      outputs_(graph.outputs),
      values_(graph.values.size()) {}

PartedComputation::Run PartedComputation::begin(const at::Tensor* const* inputs, size_t checked) const {
  Run run{.values = std::vector<at::Tensor>(values_), .versions = std::vector<int64_t>(values_, -1)};
  for (size_t i = 0; i < inputs_.size(); ++i) {
    run.values[inputs_[i]] = *inputs[i];
    if (i < checked && !inputs[i]->is_inference()) run.versions[inputs_[i]] = inputs[i]->_version();
  }
  return run;
}

void PartedComputation::advance(Run& run, size_t stage) const {
  std::vector<at::Tensor>& values = run.values;
  std::vector<const at::Tensor*> given;
  std::vector<at::Tensor> made;
  for (size_t i = stage == 0 ? 0 : stages_[stage - 1]; i < stages_[stage]; ++i) {
    const PartStep& step = steps_[i];
    given.clear();
    for (const graph::ValueId id : step.inputs) {
      TORCH_CHECK(run.versions[id] < 0 || run.versions[id] == static_cast<int64_t>(values[id]._version()),
                  "one of the variables needed for gradient computation has been modified by an inplace operation: [",
                  values[id].toString(), " ", values[id].sizes(), "] is at version ", values[id]._version(),
                  "; expected version ", run.versions[id], " instead. It was written while the backward ran.");
      given.push_back(&values[id]);
    }
    made.assign(step.outputs.size(), {});
    try {
      step.computation->compute(given.data(), made.data());
    } catch (...) {
      for (const PartStep* earlier = steps_.data(); earlier != &step; ++earlier) {
        for (const c10::OperatorHandle& op : earlier->called) note_earlier_call(op);
      }
      throw;
    }
    for (size_t k = 0; k < made.size(); ++k) values[step.outputs[k]] = std::move(made[k]);
    for (const graph::ValueId id : step.dead) values[id].reset();
  }
}

void PartedComputation::compute(const at::Tensor* const* inputs, at::Tensor* outputs) const {
  Run run = begin(inputs, /*checked=*/0);
  for (size_t stage = 0; stage < stages_.size(); ++stage) advance(run, stage);
  for (size_t i = 0; i < outputs_.size(); ++i) outputs[i] = run.values[outputs_[i]];
}

std::unique_ptr<TensorComputation> PartedComputation::tensors_for_other_weights() const {
  auto other = std::make_unique<PartedComputation>(*this);
  bool any = false;
  for (PartStep& step : other->steps_) {
    std::unique_ptr<TensorComputation> own = step.computation->tensors_for_other_weights();
    any = any || own;
    if (own) step.computation = std::move(own);
  }
  return any ? std::move(other) : nullptr;
}

std::string PartedComputation::print() const {
  std::string text;
  for (size_t i = 0; i < steps_.size(); ++i) {
    text += "part " + std::to_string(i + 1) + " of " + std::to_string(steps_.size()) + ":\n";
    text += steps_[i].computation->print();
  }
  return text;
}

}  // namespace magneto::runtime
