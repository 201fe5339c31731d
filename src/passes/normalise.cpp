// The order of the passes.
#include <algorithm>
#include <string>

#include "graph/planted.h"
#include "observe/faults.h"
#include "observe/limits.h"
#include "observe/phase.h"
#include "passes/passes.h"

namespace magneto::passes {
namespace {

template <void (*pass)(Functional&)>
void ignoring_weights(Functional& functional, const std::vector<bool>&) {
  pass(functional);
}

#define PASS(name, keeps_bits) {#name, ignoring_weights<name>, keeps_bits}
constexpr bool kKeepsBits = true, kRounds = false;
constexpr Pass kPasses[] = {
    PASS(split_lists, kKeepsBits),
    PASS(place_slices, kRounds),
    PASS(forget_overwritten, kKeepsBits),
    // Before constants are folded, so that what nobody needs is not computed for that.
    PASS(eliminate_dead, kKeepsBits),
    PASS(fold_constants, kKeepsBits),
    // Before equal operators are merged: layers share a mask.
    PASS(fuse_attention, kRounds),
    PASS(merge_common, kKeepsBits),
    // Merging and folding leave operators without a user.
    PASS(eliminate_dead, kKeepsBits),
    PASS(separate_bias, kRounds),
    // Last: layouts are for the kernels of the operators that are left.
    PASS(prefer_channels_last, kRounds),
    {"reorder_weights", reorder_weights, kRounds},
};
#undef PASS

/// What behind it can't do without it: only then is a pass above `config.pass_limit` run.
bool is_needed(const Pass& pass) { return pass.name == "split_lists"; }

/// A fault that a test has planted in the pass: a write that is lost, or an operator that becomes another.
void break_as_planted(std::string_view pass, Functional& functional) {
  const std::string place = "pass." + std::string(pass);
  const std::string* fault = observe::fault_at(place);
  if (fault && *fault == "write" && !functional.writes.empty()) functional.writes.pop_back();
  graph::swap_planted(functional.graph, place);
}

}  // namespace

const Pass* find_pass(std::string_view name) {
  const auto found = std::ranges::find(kPasses, name, &Pass::name);
  return found == std::end(kPasses) ? nullptr : found;
}

Functional normalise(graph::Graph graph, const std::vector<bool>& watched, graph::StageSink& sink, bool exact) {
  using observe::Counted;
  if (!observe::allows(Counted::Pass, "functionalise")) throw Unsupported("config.pass_limit leaves out all passes");
  observe::PhaseScope first(nullptr, sink);
  Functional functional = functionalise(std::move(graph), exact);
  break_as_planted("functionalise", functional);
  functional = first.done(std::move(functional), graph::Stage::functional, "functionalise");
  for (const Pass& pass : kPasses) {
    if (exact && !pass.keeps_bits) continue;
    if (!observe::allows(Counted::Pass, std::string(pass.name)) && !is_needed(pass)) continue;
    observe::PhaseScope phase(nullptr, sink);
    pass.run(functional, watched);
    break_as_planted(pass.name, functional);
    functional = phase.done(std::move(functional), pass.name);
  }
  return functional;
}

}  // namespace magneto::passes
