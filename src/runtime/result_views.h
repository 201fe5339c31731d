// The results of a joint computation: what its forward gives, and views of that and of inputs, made under autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "autograd/results.h"
#include "graph/graph.h"
#include "graph/symbols.h"

namespace magneto::runtime {

class ResultViews {
 public:
  ResultViews(const graph::Graph& graph, const autograd::Results& results);

  /// `inputs`: in graph.inputs order; `computed`: what the forward gave, with its history;
  /// `results`: room for graph.outputs. Throws what the operators throw.
  void make(const at::Tensor* const* inputs, const at::Tensor* computed, at::Tensor* results) const;
  /// Some result is a view.
  bool any() const { return !steps_.empty(); }

 private:
  /// A view operator. The tensors that it is given and makes are registers.
  struct Step {
    graph::AtenNode node;
    std::vector<int32_t> operands, results;
    bool with_grad = true;
    bool by_tensor = false;  // `x[i]` with a tensor of one integer
  };
  class Builder;

  std::vector<Step> steps_;
  /// Registers: first the inputs, then what is computed, then the views.
  size_t register_count_ = 0, input_count_ = 0, computed_count_ = 0;
  std::vector<int32_t> outputs_;  // registers
  graph::SymbolReader symbols_;
  bool sized_ = false;  // some step asks for a symbol's number
};

}  // namespace magneto::runtime
