// Results whose gradients pass what a backward inside of the segment has freed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

namespace magneto::runtime {

struct FreedRoot {
  size_t root;  // among what the forward computes
  std::string error;
  std::vector<size_t> leaves = {};  // among the inputs
};

/// The history of such a result: it requires gradients, and its backward raises.
void set_freed_history(at::Tensor& result, const FreedRoot& freed, const std::vector<at::Tensor>& inputs);

}  // namespace magneto::runtime
