#include "runtime/result_views.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/select.h>

#include <algorithm>
#include <map>
#include <set>

#include "graph/results_of_call.h"

namespace magneto::runtime {

using graph::ValueId;

namespace {

/// The view. Of `x[i]` with a tensor of one integer, eager's is of the number that this holds.
void run_view(const graph::AtenNode& view, bool by_tensor, torch::jit::Stack& stack) {
  if (!by_tensor) return view.op.callBoxed(stack);
  at::Tensor selected = at::select(stack[0].toTensor(), stack[1].toInt(), stack[2].toTensor().item<int64_t>());
  stack.clear();
  stack.emplace_back(std::move(selected));
}

}  // namespace

class ResultViews::Builder {
 public:
  Builder(const graph::Graph& graph, const autograd::Results& results, ResultViews& out) : graph_(graph), out_(out) {
    for (const ValueId id : graph.inputs) add(id);
    for (const autograd::Results::Computed& computed : results.computed) add(computed.value);
  }

  void add_output(const autograd::Results::Output& output) {
    ValueId value = output.base;
    int32_t place = registers_.at({value, true});
    for (size_t i = 0; i < output.views.size(); ++i) {
      const size_t view = output.views[i];
      if (made_.emplace(view, output.with_grad).second) add_step(view, place, output.with_grad);
      // Of several results, the one that the way goes on with.
      value = i + 1 < output.views.size() ? std::get<ValueId>(graph_.aten_nodes[output.views[i + 1]].args[0])
                                          : graph_.outputs[out_.outputs_.size()];
      place = registers_.at({value, output.with_grad});
    }
    out_.outputs_.push_back(place);
  }

  int32_t count() const { return count_; }

 private:
  void add(ValueId id) {
    registers_[{id, true}] = count_;
    ++count_;
  }

  void add_step(size_t view, int32_t operand, bool with_grad) {
    Step step{.node = graph_.aten_nodes[view], .operands = {operand}, .with_grad = with_grad};
    step.by_tensor = step.node.op.operator_name().name == "magneto::select";
    for (size_t i = 1; i < step.node.args.size(); ++i) {
      const auto* other = std::get_if<ValueId>(&step.node.args[i]);
      if (other) step.operands.push_back(registers_.at({*other, true}));
    }
    for (const ValueId id : step.node.results) {
      step.results.push_back(id == graph::kNoValue ? -1 : count_++);
      if (id != graph::kNoValue) registers_[{id, with_grad}] = step.results.back();
    }
    out_.sized_ |= std::ranges::any_of(
        step.node.args, [](const graph::AtenArg& arg) { return std::holds_alternative<graph::SizeArg>(arg); });
    out_.steps_.push_back(std::move(step));
  }

  const graph::Graph& graph_;
  ResultViews& out_;
  std::map<std::pair<ValueId, bool>, int32_t> registers_;  // by value, and whether it is made in grad mode
  std::set<std::pair<size_t, bool>> made_;
  int32_t count_ = 0;
};

ResultViews::ResultViews(const graph::Graph& graph, const autograd::Results& results) : symbols_(graph) {
  Builder builder(graph, results, *this);
  for (const autograd::Results::Output& output : results.outputs) builder.add_output(output);
  register_count_ = static_cast<size_t>(builder.count());
  input_count_ = graph.inputs.size();
  computed_count_ = results.computed.size();
}

void ResultViews::make(const at::Tensor* const* inputs, const at::Tensor* computed, at::Tensor* results) const {
  std::vector<at::Tensor> made(register_count_ - input_count_ - computed_count_);
  const auto tensor_at = [&](int32_t place) -> const at::Tensor& {
    size_t index = static_cast<size_t>(place);
    if (index < input_count_) return *inputs[index];
    index -= input_count_;
    return index < computed_count_ ? computed[index] : made[index - computed_count_];
  };
  graph::SymbolValues symbols;
  if (sized_) symbols = symbols_.read(inputs);
  torch::jit::Stack stack;
  for (const Step& step : steps_) {
    stack.clear();
    size_t operand = 0;
    for (size_t i = 0; i < step.node.args.size(); ++i) {
      const graph::AtenArg& arg = step.node.args[i];
      if (std::holds_alternative<ValueId>(arg)) {
        stack.emplace_back(tensor_at(step.operands[operand++]));
      } else if (const auto* size = std::get_if<graph::SizeArg>(&arg)) {
        stack.push_back(graph::number_of(*size, symbols));
      } else {
        stack.push_back(std::get<c10::IValue>(arg));
      }
    }
    const at::AutoGradMode mode(step.with_grad);
    run_view(step.node, step.by_tensor, stack);
    size_t next = 0;
    graph::for_each_tensor(stack, [&](const at::Tensor& tensor) {
      const int32_t place = step.results[next++];
      if (place >= 0) made[static_cast<size_t>(place) - input_count_ - computed_count_] = tensor;
    });
  }
  for (size_t i = 0; i < outputs_.size(); ++i) results[i] = tensor_at(outputs_[i]);
}

}  // namespace magneto::runtime
