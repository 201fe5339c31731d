// Whether a segment may be captured once more: the stance, tracers of torch.fx, the limits on captures, and what makes
// a recompile an error.
#pragma once

#include "capture/capture.h"
#include "dispatch/context.h"

namespace magneto::dispatch {

/// torch.fx.symbolic_trace that meets a compiled function is an error: torch._dynamo.config.error_on_nested_fx_trace.
bool& refuses_fx_tracing();
/// False: a torch.fx.Tracer is at work, perhaps with the error set; else it traces what CPython runs.
bool fx_tracing_allows(const CodePlace& place);
/// False: the stance forbids captures; perhaps with an error set.
bool stance_allows(const Segment& segment, const CodePlace& place, const guards::Roots& roots);
/// False: a limit is reached, or the recompile is an error, which is set then. `captures`: of the function, over all
/// calls of `compile`.
bool allow_another(Context& context, Segment& segment, const CodePlace& place, int64_t captures,
                   const guards::Roots& roots);

}  // namespace magneto::dispatch
