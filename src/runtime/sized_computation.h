// A graph whose sizes are dynamic: code for each of the sizes that come often, the operators one by one for
// all others.
#pragma once

#include <functional>
#include <memory>

#include "graph/symbols.h"
#include "runtime/computation.h"

namespace magneto::runtime {

/// Generates code for a graph without symbols.
using Specialise = std::function<std::unique_ptr<TensorComputation>(const graph::Graph&)>;

/// `first`: code for the sizes of `values`, those of the capture.
std::unique_ptr<TensorComputation> make_sized_computation(const graph::Graph& graph, const graph::SymbolValues& values,
                                                          std::unique_ptr<TensorComputation> first,
                                                          Specialise specialise);

}  // namespace magneto::runtime
