// The order of the passes.
#include <algorithm>

#include "observe/phase.h"
#include "passes/passes.h"

namespace magneto::passes {
namespace {

template <void (*pass)(Functional&)>
void ignoring_weights(Functional& functional, const std::vector<bool>&) {
  pass(functional);
}

#define PASS(name) {#name, ignoring_weights<name>}
constexpr Pass kPasses[] = {
    PASS(split_lists),
    PASS(place_slices),
    // Before constants are folded, so that what nobody needs is not computed for that.
    PASS(eliminate_dead),
    PASS(fold_constants),
    // Before equal operators are merged: layers share a mask.
    PASS(fuse_attention),
    PASS(merge_common),
    // Merging and folding leave operators without a user.
    PASS(eliminate_dead),
    PASS(separate_bias),
    // Last: layouts are for the kernels of the operators that are left.
    PASS(prefer_channels_last),
    {"reorder_weights", reorder_weights},
};
#undef PASS

}  // namespace

const Pass* find_pass(std::string_view name) {
  const auto found = std::ranges::find(kPasses, name, &Pass::name);
  return found == std::end(kPasses) ? nullptr : found;
}

Functional normalise(graph::Graph graph, const std::vector<bool>& watched, graph::StageSink& sink) {
  Functional functional = observe::PhaseScope(nullptr, sink)
                              .done(functionalise(std::move(graph)), graph::Stage::functional, "functionalise");
  for (const Pass& pass : kPasses) {
    observe::PhaseScope phase(nullptr, sink);
    pass.run(functional, watched);
    functional = phase.done(std::move(functional), pass.name);
  }
  return functional;
}

}  // namespace magneto::passes
