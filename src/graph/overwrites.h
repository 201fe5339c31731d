#pragma once

#include "graph/graph.h"

namespace magneto::graph {

/// What the operator writes, or puts in place of elements of its first argument, does not depend on what was there.
bool overwrites(const AtenNode& node);

}  // namespace magneto::graph
