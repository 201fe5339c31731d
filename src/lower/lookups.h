// Lookups by indices raise where an index is out of bounds. A kernel looks up what it reads, and of a lookup that
// the program slices, pads or overwrites it reads only a part: errors in the rest, which are eager's, would be lost.
#pragma once

#include <cstdint>
#include <set>

#include "lower/lowering.h"

namespace magneto::lower {

/// The operators (by their position in the graph) with a lookup of which it is not known that the kernels of `lowering`
/// do all of it. Behind `Lowering::run`.
std::set<int32_t> partly_done_lookups(const Lowering& lowering);

}  // namespace magneto::lower
