// Pieces of the text form that the printer, the parser and messages share.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace magneto::graph {

/// The strides of a contiguous tensor of these sizes; they are not printed.
std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes);

/// Each node as a line of its own: `%1: f32[2, 3] = torch.add(%0, 1)`, `%1: f32[2, 3] = aten.add.Tensor(%0, 1, 1)`.
std::vector<std::string> torch_lines(const Graph& graph);
std::vector<std::string> aten_lines(const Graph& graph);
/// `f32[2, 3]{1, 2}`.
std::string type_text(const TensorMeta& meta);

/// `aten.add.Tensor`, `aten.relu.default`: the name users find in torch.ops.
std::string operator_text(const c10::OperatorHandle& op);

/// `aten.add.Tensor at model.py:12 in forward`: an operator of the graph and the user's line that it came from.
std::string origin_text(const Graph& graph, const AtenNode& node);

/// `torch.add` for functions and types, a short `repr` for other objects. Needs the GIL; never fails, never raises.
std::string callable_or_repr(PyObject* object);

}  // namespace magneto::graph
