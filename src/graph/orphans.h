// Operators that C code ran outside any recorded torch call.
#pragma once

#include "graph/graph.h"

namespace magneto::graph {

/// Gives every operator that no torch call made (C code that was handed tensors: `functools.reduce(operator.mul, ...)`)
/// a torch node of its own, which calls the operator itself.
void adopt_orphans(Graph& graph);

/// The operator as a torch call of its own.
TorchNode operator_call(const AtenNode& op);

/// A constant argument, declared so in the operator's schema, as Python has it.
Ref constant_object(const c10::IValue& value, const c10::Type& declared);

/// `torch.ops.aten.mm.default` and its like: what an operator is to Python.
Ref overload_object(const c10::OperatorHandle& op);

}  // namespace magneto::graph
