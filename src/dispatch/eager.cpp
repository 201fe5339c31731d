#include "dispatch/eager.h"

#include <torch/csrc/autograd/forward_grad.h>

#include "capture/capture.h"
#include "dispatch/context.h"
#include "dispatch/log.h"
#include "dispatch/rerun.h"
#include "observe/stats.h"
#include "python/abi/frame.h"
#include "runtime/plan/failed_call.h"
#include "runtime/program/dispatch_scope.h"

namespace magneto::dispatch {

Stance& stance() {
  static Stance current = Stance::Default;
  return current;
}

bool& disabled_on_this_thread() {
  thread_local bool disabled = false;
  return disabled;
}

namespace {

/// A tool that has to see what runs: the name under which it is counted, and what the user is told.
struct Watcher {
  const char* cause;
  const char* message;
  bool said = false;
};

Watcher tracer{"tracing",
               "Compiled functions run under CPython while a tracer or profiler is active (a debugger, coverage, "
               "cProfile), so that it sees each line."};
Watcher dispatch_mode{
    "dispatch mode",
    "Compiled functions run under CPython while a __torch_dispatch__ mode, a transform of torch.func, "
    "torch.jit.trace or forward-mode AD is active, so that it sees each operator."};

Run leave_to(PyThreadState* thread, Watcher& watcher) {
  ++stats().fallbacks[watcher.cause];
  if (std::exchange(watcher.said, true)) return Run::Eager;
  PyThreadState_EnterTracing(thread);  // a debugger does not stop in the code of `warnings`
  const bool said = warn(watcher.message);
  PyThreadState_LeaveTracing(thread);
  return said ? Run::Eager : Run::Refused;
}

}  // namespace

Run how_to_run(PyThreadState* thread, EagerCalls& counts) {
  if (capture::Capture::current()) return Run::Eager;
  if (disabled_on_this_thread()) return ++counts.disabled, Run::Eager;
  if (stance() == Stance::ForceEager) return ++counts.stance, Run::Eager;
  if (is_watched_rerun(thread) || runtime::RaiseAgain::waits()) return Run::Eager;
  if (is_traced(thread)) return ++counts.traced, leave_to(thread, tracer);
  if (!runtime::DispatchScope().is_plain() || torch::autograd::ForwardADLevel::try_get_by_idx(0)) {
    return ++counts.dispatch_mode, leave_to(thread, dispatch_mode);
  }
  return Run::Compiled;
}

}  // namespace magneto::dispatch
