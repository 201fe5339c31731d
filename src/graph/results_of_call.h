// What an operator has left on the stack, a tensor at a time: in the order of `AtenNode::results`.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace magneto::graph {

/// Calls `take` for each tensor among the results, those in lists too.
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
