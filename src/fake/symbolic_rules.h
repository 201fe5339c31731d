// What symbolic rules of several families share.
#pragma once

#include "fake/symbolic.h"

namespace magneto::fake {

int64_t wrapped(int64_t dim, const SymSizes& sizes);
/// Asks whether they are the same, which is assumed where it depends.
bool same_sizes(const SymSizes& a, const SymSizes& b);
/// All results have these sizes; those that are arguments (in place) already must.
bool all_results(SymbolicCall& call, const SymSizes& sizes);
/// As large as argument 0.
bool like_self(SymbolicCall& call);

}  // namespace magneto::fake
