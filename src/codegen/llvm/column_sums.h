// Sums of columns over several tensors: a gradient and the sum of its rows for a bias; a norm's gradients of its weight
// and bias.
//
// With lanes across the columns and a sum in a register each, a vector of each row is visited at a time, and rows may
// lie a page apart: neither the cache's lines nor what the CPU reads ahead are of use. Here a strip of columns is
// worked on row after row, and its sums wait in scratch memory, which is in the first cache. (The plain sum of one
// tensor is quicker in registers, many of them at a time.)
#pragma once

#include "codegen/llvm/schedule.h"

namespace magneto::codegen {

/// Turns
///     parallel i0 < 1024    stage i1 < 512 { ... %2 = reduce.sum %1 }    row { ... %2 ... }
/// with the lanes along i0 into
///     parallel i2 < 8       stage i3 < 128 { store scratch[i3], 0 }
///                           stage i1 < 512, i4 < 128 { ... scratch[i4] += %1 }
///                           stage i5 < 128 { %2 = load scratch[i5] ... }
/// with i0 = 128*i2 + i4. False, and nothing done, for kernels that are no such sums.
bool sum_in_strips(loops::Kernel& kernel);

/// What the strips' rows ahead need, whose places the CPU does not foresee: rows are far apart.
std::vector<Schedule::Ahead> ahead_in_strips(const loops::Kernel& kernel);

}  // namespace magneto::codegen
