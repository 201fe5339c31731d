// Whether a segment may be captured once more: the stance, the limits on captures, and what makes a recompile an error.
#pragma once

#include "capture/capture.h"
#include "dispatch/context.h"

namespace magneto::dispatch {

/// False: the stance forbids captures; perhaps with an error set.
bool stance_allows(const Segment& segment, const CodePlace& place, const guards::Roots& roots);
/// False: a limit is reached, or the recompile is an error, which is set then. `captures`: of the function, over all
/// calls of `compile`.
bool allow_another(Context& context, Segment& segment, const CodePlace& place, int64_t captures,
                   const guards::Roots& roots);

}  // namespace magneto::dispatch
