// Helpers for whoever runs or rebuilds the torch level: its arguments as Python objects, and which values it needs.
#pragma once

#include <functional>
#include <vector>

#include "graph/graph.h"
#include "python/ref.h"

namespace magneto::graph {

/// Builds the Python argument that `arg` describes: `value` gives what stands for a tensor, `constant` what stands for
/// an object (usually the object), `size` what stands for a size, `number` what stands for the number in a tensor.
/// Containers are new each time. Throws PythonError.
Ref build_py_arg(const PyArg& arg, const std::function<Ref(ValueId)>& value,
                 const std::function<Ref(PyObject*)>& constant, const std::function<Ref(shapes::Expr)>& size,
                 const std::function<Ref(ValueId)>& number);

/// Calls `visit` for each tensor in `arg`.
void for_each_value(const PyArg& arg, const std::function<void(ValueId)>& visit);

/// For each value: some torch call takes it, or it is an output.
std::vector<bool> values_used_by_torch(const Graph& graph);

}  // namespace magneto::graph
