// For tests: faults planted in the machine code of kernels (observe/faults.h). The loop IR, and what interprets it, are
// as they should be.
#pragma once

#include "loops/ir.h"

namespace magneto::runtime {

/// The kernel that is compiled in place of `kernel`: for the faults `kernel.wrong`, `kernel.lane`, `kernel.nan` and
/// `kernel.size`, planted with an operation of the loop IR (`exp`), one with another result: everywhere, in one lane,
/// where it is NaN, or if a loop has the extent that is given behind a colon (`exp:96`).
loops::Kernel as_planted(const loops::Kernel& kernel);

}  // namespace magneto::runtime
