// Graphs given to the minifier before a backend gets them, while `config.repro_after` asks for it.
#pragma once

#include "compiler/pipeline.h"
#include "dispatch/context.h"

namespace magneto::dispatch {

/// `repro_after` "dynamo": the captured graph, on its backend. "aot": the graphs of ATen operators that code is
/// generated for, forward and backward. Throws PythonError where the real attempt must not be made.
void try_graph(const Context& context, const compiler::Request& request);

}  // namespace magneto::dispatch
