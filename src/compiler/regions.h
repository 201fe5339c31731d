// The regions of a graph that is being compiled: each becomes an operand of the operator that runs it.
#pragma once

#include <ATen/core/ivalue.h>

#include "compiler/backends.h"
#include "graph/graph.h"

namespace magneto::compiler {

/// The region, compiled as a graph by itself, its operators run as said.
c10::IValue compile_region(const graph::Region& region, Backend::Operators operators);
/// The same, its operators called one by one as they were captured.
c10::IValue call_region(const graph::Region& region);

}  // namespace magneto::compiler
