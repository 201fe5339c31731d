#include "dispatch/limits.h"

#include "dispatch/capture_setup.h"
#include "dispatch/eager.h"
#include "dispatch/report.h"
#include "observe/history.h"
#include "observe/stats.h"
#include "python/errors.h"
#include "python/text.h"

namespace magneto::dispatch {
namespace {

std::string triggered_by(const Segment& segment, const CodePlace& place, const guards::Roots& roots) {
  return "\n    triggered by the following guard failure(s):\n" + failed_guards(segment, place, roots);
}

}  // namespace

bool& refuses_fx_tracing() {
  static bool refuses = false;
  return refuses;
}

bool fx_tracing_allows(const CodePlace& place) {
  const Ref name = text_object("torch.fx._symbolic_trace");
  const Ref module = Ref::steal(PyImport_GetModule(name.get()));
  const Ref tracing = module ? Ref::steal(PyObject_GetAttrString(module.get(), "_is_fx_tracing_flag")) : Ref();
  PyErr_Clear();
  if (tracing.get() != Py_True) return true;
  if (!refuses_fx_tracing()) return false;
  raise("NestedFxTrace", "torch.fx traces a program that calls compiled code: " + place_text(place) +
                             ". Trace what it was compiled from and compile the traced module, or set "
                             "torch._dynamo.config.error_on_nested_fx_trace = False to trace through it.");
  return false;
}

bool stance_allows(const Segment& segment, const CodePlace& place, const guards::Roots& roots) {
  if (stance() == Stance::FailOnRecompile) {
    raise("RecompileError",
          "The stance is \"fail_on_recompile\", and " + place_text(place) +
              (segment.entries.empty() ? " has not been captured yet. Call it once under the stance \"default\" first."
                                       : " would be captured again" + triggered_by(segment, place, roots) +
                                             "Call it once under the stance \"default\" to capture this case, too."));
  }
  return stance() == Stance::Default || stance() >= Stance::EagerThenCompile;
}

bool allow_another(Context& context, Segment& segment, const CodePlace& place, int64_t captures,
                   const guards::Roots& roots) {
  const int64_t accumulated = settings().accumulated_cache_size_limit;
  const auto fails = [&](const char* limit) {
    if (!context.fullgraph && !settings().fail_on_recompile_limit_hit) return;
    raise("FailOnRecompileLimitHit", std::string(limit) + " is reached, and " +
                                         (context.fullgraph ? "fullgraph=True" : "config.fail_on_recompile_limit_hit") +
                                         " makes that an error: " + place_text(place) +
                                         (segment.entries.empty() ? "" : triggered_by(segment, place, roots)));
  };
  if (captures >= accumulated) {
    fails("accumulated_cache_size_limit");
    if (PyErr_Occurred()) return false;
    report_limit(segment, place, "accumulated_cache_size_limit", accumulated,
                 "That many captures were made of it, for different modules, closures or calls of compile.");
    return false;
  }
  if (segment.entries.empty()) return true;
  for (const auto& entry : segment.entries) segment.data_changes |= entry->guards->failed_on_data();
  report_recompile(context, segment, place, roots);
  if (context.settings[&Settings::error_on_recompile]) {
    raise("RecompileError", "Recompiling " + place_text(place) + triggered_by(segment, place, roots) +
                                "print(magneto.recompiles()) says what would stop it; without "
                                "config.error_on_recompile it is captured again.");
    return false;
  }
  const int64_t limit = entry_limit(context);
  if (static_cast<int64_t>(segment.entries.size()) < limit) return true;
  fails("cache_size_limit");
  if (PyErr_Occurred()) return false;
  const Entry& last = *segment.entries.front();
  report_limit(segment, place, "cache_size_limit", limit,
               "last reason: " + last.id + ": " + failure_text(place, guards::failure_of(*last.guards, roots), 8));
  return false;
}

}  // namespace magneto::dispatch
