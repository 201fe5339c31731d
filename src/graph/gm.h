// The torch level of a graph as a `torch.fx.GraphModule`: the form handed to Python backends and shown by logs.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "python/ref.h"

namespace magneto::graph {

/// Builds a GraphModule whose forward takes the graph's inputs in order and returns a tuple of its outputs. Its Python
/// code is generated at the first call or when `.code` is read. Imports torch.fx at the first use. Needs the GIL.
/// Throws PythonError, or std::invalid_argument when the torch level does not make a value that it uses.
///
/// `annotated`: each node that makes a tensor has its meta["tensor"]: (dtype's short name, sizes, strides, device).
Ref graph_module(const Graph& graph, bool annotated = false);

/// The same of a region, made once: sizes of its own come before its inputs.
Ref region_module(const Region& region);

class Origins;

/// How a graph of operators (operator_calls.h) is given to compilers that users wrote.
struct OperatorForm {
  /// What the module returns; absent values are None, and some may be there twice.
  std::vector<ValueId> returned;
  /// Names of the placeholders that stand before the inputs, one for each symbol that is found in inputs.
  std::vector<std::string> symbols = {};
  /// Symbols whose numbers are returned, too, behind the rest.
  std::vector<int32_t> returned_symbols = {};
  /// Not null: nodes say where they come from.
  Origins* origins = nullptr;
};

/// Such a module: a plain GraphModule, whose placeholders are named as the inputs are. Nodes that make a tensor have
/// its like on the meta device as meta["val"], those of sizes the number in the capture. Throws as above.
Ref operator_module(const Graph& graph, const OperatorForm& form);
/// Names of the nodes that a module returns; of None "".
std::vector<std::string> returned_names(const Ref& module);

/// The bound `forward` of what `graph_module` made, its code generated. Calling it is calling the module without the
/// module's hooks, which nobody could have set.
Ref forward_of(const Ref& module);

}  // namespace magneto::graph
