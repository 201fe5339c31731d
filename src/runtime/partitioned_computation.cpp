// Graphs with operators that are called between compiled parts.
#include "runtime/partitioned_computation.h"

#include "runtime/plan/failed_call.h"

namespace magneto::runtime {

namespace {

class PartedComputation final : public TensorComputation {
 public:
  PartedComputation(const graph::Graph& graph, std::vector<PartStep> steps)
      : steps_(std::move(steps)), inputs_(graph.inputs), outputs_(graph.outputs), values_(graph.values.size()) {}

  void compute(const at::Tensor* const* inputs, at::Tensor* outputs) const override {
    std::vector<at::Tensor> values(values_);
    for (size_t i = 0; i < inputs_.size(); ++i) values[inputs_[i]] = *inputs[i];
    std::vector<const at::Tensor*> given;
    std::vector<at::Tensor> made;
    for (const PartStep& step : steps_) {
      given.clear();
      for (const graph::ValueId id : step.inputs) given.push_back(&values[id]);
      made.assign(step.outputs.size(), {});
      try {
        step.computation->compute(given.data(), made.data());
      } catch (...) {
        for (const PartStep* earlier = steps_.data(); earlier != &step; ++earlier) {
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
    for (PartStep& step : other->steps_) {
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
  std::vector<PartStep> steps_;
  std::vector<graph::ValueId> inputs_, outputs_;
  size_t values_;
};

}  // namespace

std::unique_ptr<TensorComputation> make_partitioned_computation(const graph::Graph& graph,
                                                                std::vector<PartStep> steps) {
  return std::make_unique<PartedComputation>(graph, std::move(steps));
}

}  // namespace magneto::runtime
