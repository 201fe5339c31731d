// When two operators of a graph compute the same.
#pragma once

#include <functional>
#include <string>

#include "graph/graph.h"

namespace magneto::graph {

/// Equal for operators that compute the same of the same operands; `name` tells which operands are the same. Empty:
/// there is none (constants that are tensors or generators, regions).
std::string operator_key(const AtenNode& node, const std::function<ValueId(ValueId)>& name);

}  // namespace magneto::graph
