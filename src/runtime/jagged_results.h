// Jagged tensors that a segment hands on: wrappers, whose history is that of the values in them.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

namespace torch::autograd {
struct Edge;
}

namespace magneto::runtime {

/// Takes such a tensor, without a history, and its values, as the graph gives them; gives the tensor, which has their
/// history then.
extern PyMethodDef kWithHistoryOfValues;

/// Where the gradient of an input goes. Of a jagged one the graph has the gradient of its values, of a
/// DTensor that of its local tensor (`placements`: autograd::LocalGradient).
torch::autograd::Edge edge_of_input(const at::Tensor& input, PyObject* placements = nullptr);

}  // namespace magneto::runtime
