// A kernel with as few and as long loops as the same work can have.
#pragma once

#include "loops/ir.h"

namespace magneto::loops {

/// What is known of a leaf of the kernel's expressions: symbols have ranges, variables are below their extents.
std::function<shapes::Range(Expr leaf)> leaf_ranges(const Kernel& kernel);

/// Turns
///     parallel i0 < 8, i1 < 1, i2 < 64        load b0[64*i0 + i2]
/// into
///     parallel i3 < 512                       load b0[i3]
/// wherever all expressions allow it, and simplifies the expressions by the variables' ranges. Loops of a stage that
/// runs in order (scans, scattering stores) keep their order.
void normalize(Kernel& kernel);

/// True for a stage whose iterations must run one after another.
bool runs_in_order(const Block& block);

}  // namespace magneto::loops
