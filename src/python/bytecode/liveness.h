// Which local variables a frame still needs at an instruction.
#pragma once

#include "python/bytecode/code.h"

namespace magneto {

/// True if `slot` may be read before it is set again when the frame goes on at `instr`, exception handlers included.
/// Cells, free variables and all locals of functions that can see their own frame (locals(), eval, sys._getframe...)
/// are always live, as is the first argument of one that calls super(). Analysed once per code object.
bool is_live(const CodeInfo& info, int32_t instr, int32_t slot);

}  // namespace magneto
