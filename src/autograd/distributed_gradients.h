// Gradients of DTensors, of which the graph has the local tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

namespace magneto::autograd {

/// The local tensor of the gradient that goes to `leaf`, if it lies on the mesh as that does; undefined: it does not,
/// or is none.
at::Tensor local_gradient(const at::Tensor& gradient, const torch::autograd::Edge& leaf);

/// Where the gradient of a DTensor's local tensor goes, to become the DTensor's.
torch::autograd::Edge edge_of_local(const at::Tensor& distributed);

bool is_dtensor(const at::Tensor& tensor);

}  // namespace magneto::autograd
