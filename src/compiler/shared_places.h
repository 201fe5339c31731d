// Results that lie where an operand did.
#pragma once

#include <functional>

#include "runtime/program/compiled_steps.h"

namespace magneto::runtime {

/// The first step that writes an input: from there on no memory is allocated, which may fail.
int32_t first_written_input(const CompiledProgram::Impl& impl);

/// A kernel's result takes the place of its operand in the arena, or the memory of one that has its own
/// (Register::over): where the operand is needed no more, of the same size, and no iteration reads what another one
/// writes. Gives for each register the one that lies where it does.
std::vector<int32_t> find_shared_places(CompiledProgram::Impl& impl,
                                        const std::function<bool(int32_t, int32_t)>& same_bytes);

}  // namespace magneto::runtime
