// A graph with operators that are called, on the tensors of the run, between compiled parts.
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
std::unique_ptr<TensorComputation> make_partitioned_computation(const graph::Graph& graph, std::vector<PartStep> steps);

}  // namespace magneto::runtime
