// What a call of an operator gives, a tensor at a time: in the order of `AtenNode::results`.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <vector>

#include "graph/graph.h"

namespace magneto::graph {

/// Where the operator's tensors are in what its call gives: itself, in a tuple or a list, or in lists in a tuple.
std::vector<TorchResult> results_of(const AtenNode& node);

/// Calls `take` for each tensor that the operator has left on the stack, those in lists too.
template <typename Take>
void for_each_tensor(const torch::jit::Stack& results, Take take) {
  for (const c10::IValue& value : results) {
    if (value.isTensor()) {
      take(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) take(tensor);
    }
  }
}

}  // namespace magneto::graph
