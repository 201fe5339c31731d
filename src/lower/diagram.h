// The program as a picture: kernels, calls and the buffers between them.
#pragma once

#include <string>

#include "lower/program.h"

namespace magneto::lower {

/// An SVG: a box for each kernel and call, in rows by what they wait for, the first on top; a line for each buffer that
/// one makes and another reads.
std::string diagram(const LoopProgram& program);

}  // namespace magneto::lower
