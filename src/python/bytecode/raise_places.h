// Where the value stack holds the place that a handler raises from again: the offset of an instruction, as CPython
// counts it, which it puts there itself.
#pragma once

#include "python/bytecode/code.h"

namespace magneto {

/// In front of instruction `instr`, the stack's entry number `depth` (0: the lowest) is such an offset.
bool holds_raise_place(const CodeInfo& info, int32_t instr, int32_t depth);

}  // namespace magneto
