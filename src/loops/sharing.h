// Which buffers of a kernel may be the same memory.
#pragma once

#include "loops/ir.h"

namespace magneto::loops {

/// Whether the result may be written over the operand: each parallel iteration reads no element of `operand` but those
/// of its own that it writes in `result` later, so that no iteration misses what another one has overwritten.
bool may_write_over(const Kernel& kernel, BufferId operand, BufferId result);

}  // namespace magneto::loops
