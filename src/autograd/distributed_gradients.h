// Gradients of DTensors, of which the graph has the local tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <string>

namespace magneto::autograd {

/// The gradient of a DTensor's local tensor, and how it lies on the mesh (borrowed, kept for good; null: as autograd
/// has it by default).
struct LocalGradient {
  at::Tensor tensor;
  PyObject* placements = nullptr;
};

/// Of a gradient of the DTensor `input`. No tensor: it is none of one.
LocalGradient local_gradient(const at::Tensor& gradient, const at::Tensor& input);

/// Where the gradient of a DTensor's local tensor goes, to become the DTensor's, with those placements.
torch::autograd::Edge edge_of_local(const at::Tensor& distributed, PyObject* placements);

/// How it lies on the mesh, for messages.
std::string placements_of(const at::Tensor& distributed);

bool is_dtensor(const at::Tensor& tensor);

}  // namespace magneto::autograd
