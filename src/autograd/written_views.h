// Nodes of autograd whose backward writes to a part of a gradient in its place, which has no symbolic sizes and no
// kernels: what they compute, without the write.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <optional>

namespace magneto::autograd {

/// Those of a write to a view (`CopySlices`), and of a view that is what it was before a write to another one
/// (`as_strided`). Nothing for all other nodes, and for memory in an unusual order.
std::optional<torch::autograd::variable_list> call_without_writes(torch::autograd::Node& node,
                                                                  const torch::autograd::variable_list& gradients);

}  // namespace magneto::autograd
