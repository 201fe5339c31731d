// The operators of a graph, called one by one through the dispatcher: on stand-ins, so as to be recorded anew.
#pragma once

#include <functional>
#include <vector>

#include "graph/graph.h"

namespace magneto::graph {

class OperatorRun {
 public:
  /// `graph` outlives this. `constant`: what stands for one. `size`: what the graph's symbols make of a size.
  OperatorRun(const Graph& graph, std::function<at::Tensor(const at::Tensor&)> constant,
              std::function<c10::SymInt(shapes::Expr)> size)
      : graph_(graph), constant_(std::move(constant)), size_(std::move(size)), tensors_(graph.values.size()) {}

  /// The graph's outputs. Throws what the operators throw; std::invalid_argument for a branch, and for a float that
  /// only a run knows.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);

 private:
  const at::Tensor& tensor(ValueId id);
  c10::IValue argument(const AtenNode& node, size_t i);
  void call(const AtenNode& node);

  const Graph& graph_;
  const std::function<at::Tensor(const at::Tensor&)> constant_;
  const std::function<c10::SymInt(shapes::Expr)> size_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace magneto::graph
