// magneto::cached_cast(self, leaf, dtype): what autocast's kernels give their operators for `leaf`, which holds `self`.
//
// PyTorch keeps casts of leaves that require gradients until the outermost region of autocast ends: whatever is written
// to a weight meanwhile, nobody there sees it. A segment casts for itself what it alone is given, and with this
// operator what others are given too: code around it, before it and behind it, compiled or not, in the same region.
// It is called (runtime/program/kept_casts.cpp) and gives what PyTorch's cache has of `leaf`, or a cast of `self`,
// which the cache has from then on. Nothing may be generated of it, and a backward, which may run when the region has
// ended, has other casts: the plain ones.
#pragma once

#include "graph/graph.h"

namespace magneto::graph {

bool is_kept_cast(const AtenNode& node);

/// The cast alone, in the place of one that is kept: nobody else in its region takes it.
void make_plain_cast(AtenNode& node);

}  // namespace magneto::graph
