// Guards for tools: `python -m magneto report` shows them.
#pragma once

#include <string>

#include "guards/guards.h"

namespace magneto::guards {

/// The tree as JSON, with what checking costs, in nanoseconds, where the guards hold for these roots:
///     {"nodes": [{"parent", "source", "checks": [[line, place, op]...], "loads": [op...]}...],
///      "costs": [of each op, for itself...], "hot": of one check of all when nothing has changed}
std::string data(GuardProgram& program, const Roots& roots);

}  // namespace magneto::guards
