// Which operators become parts of kernels.
#pragma once

#include "graph/graph.h"

namespace magneto::lower {

/// The operator is a part of kernels wherever its rule takes it; products, which have rules too, are mostly called.
bool is_fused(const graph::AtenNode& node);

}  // namespace magneto::lower
