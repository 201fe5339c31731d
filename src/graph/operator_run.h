// The operators of a graph, called one by one through the dispatcher: on stand-ins, so as to be recorded anew.
#pragma once

#include <functional>
#include <vector>

#include "graph/graph.h"

namespace magneto::graph {

class OperatorRun {
 public:
  /// What stands for a constant, for a size that the graph's symbols make, and for the number in a tensor.
  struct StandIns {
    std::function<at::Tensor(const at::Tensor& constant)> constant;
    std::function<c10::SymInt(shapes::Expr size)> size;
    std::function<c10::SymFloat(const at::Tensor& holder)> number;
  };

  /// `graph` outlives this.
  OperatorRun(const Graph& graph, StandIns stand_ins)
      : graph_(graph), stand_ins_(std::move(stand_ins)), tensors_(graph.values.size()) {}

  /// The graph's outputs. Throws what the operators throw; std::invalid_argument for a branch.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);
  /// What has been computed for it.
  const at::Tensor& value(ValueId id) { return tensor(id); }

 private:
  const at::Tensor& tensor(ValueId id);
  c10::IValue argument(const AtenNode& node, size_t i);
  void call(const AtenNode& node);

  const Graph& graph_;
  const StandIns stand_ins_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace magneto::graph
