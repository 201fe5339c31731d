// A graph that runs in parts: with operators that are called, on the tensors of the run, between compiled parts; or cut
// where somebody wants what is known by then.
#pragma once

#include <memory>
#include <vector>

#include "runtime/computation.h"

namespace magneto::runtime {

struct PartStep {
  std::shared_ptr<const TensorComputation> computation;
  /// Values of the whole graph.
  std::vector<graph::ValueId> inputs, outputs, dead;
  /// Operators that are called as they are.
  std::vector<c10::OperatorHandle> called;
};

class PartedComputation final : public TensorComputation {
 public:
  /// `stages`: the step behind each.
  PartedComputation(const graph::Graph& graph, std::vector<PartStep> steps, std::vector<size_t> stages);

  void compute(const at::Tensor* const* inputs, at::Tensor* outputs) const override;
  size_t input_count() const override { return inputs_.size(); }
  size_t output_count() const override { return outputs_.size(); }
  OnError on_error() const override { return OnError::Between; }
  std::unique_ptr<TensorComputation> tensors_for_other_weights() const override;
  std::string print() const override;

  /// What one run knows, by value of the graph.
  struct Run {
    std::vector<at::Tensor> values;
    std::vector<int64_t> versions;  // that a value must still have; -1: any
  };
  /// `checked`: so many inputs, the first, must not be written until the last stage has read them.
  Run begin(const at::Tensor* const* inputs, size_t checked) const;
  /// In order. Throws what operators throw, and eager's error where what is to be read was written meanwhile.
  void advance(Run& run, size_t stage) const;
  size_t stages() const { return stages_.size(); }

 private:
  std::vector<PartStep> steps_;
  std::vector<size_t> stages_;
  std::vector<graph::ValueId> inputs_, outputs_;
  size_t values_;
};

}  // namespace magneto::runtime
