// Results too large to be in the cache when somebody reads them: stores around the cache need not read each line first,
// which is a third of what a kernel like softmax moves.
#pragma once

#include "codegen/llvm/schedule.h"

namespace magneto::codegen {

/// Turns what a later stage reads back from a large result
///     stage i2 < 4096 { ... store b1[4096*i0 + i2], %4 }    stage i3 < 4096 { %7 = load b1[4096*i0 + i3] ... }
/// into a row of scratch memory, so that the result is only written, once.
void keep_rows_in_scratch(loops::Kernel& kernel, const Machine& machine);

/// By buffer: results that nothing reads, and that are large, or may be.
std::vector<bool> find_streamed(const loops::Kernel& kernel, const Machine& machine);

/// Kernels with large results wait for memory and for arithmetic in turn, unless they ask for what they need later: the
/// elements of a page further on, or where rows are long and read several times, the next row in the last stage.
std::vector<Schedule::Ahead> find_ahead(const Schedule& schedule);

}  // namespace magneto::codegen
