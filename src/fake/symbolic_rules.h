// What symbolic rules of several families share.
#pragma once

#include "fake/symbolic.h"

namespace magneto::fake {

int64_t wrapped(int64_t dim, const SymSizes& sizes);
/// Asks whether they are the same, which is assumed where it depends.
bool same_sizes(const SymSizes& a, const SymSizes& b);
/// All results have these sizes; those that are arguments (in place) already must.
bool all_results(SymbolicCall& call, const SymSizes& sizes);
/// What two shapes broadcast to. Asked of are only those sizes of which it does not show.
SymSizes broadcast_sizes(c10::SymIntArrayRef a, c10::SymIntArrayRef b);
/// As large as argument 0.
bool like_self(SymbolicCall& call);

}  // namespace magneto::fake
