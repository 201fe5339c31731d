#include "runtime/partial_gradients.h"

namespace magneto::runtime {

void refuse_hooks(const autograd::RootHooks& hooks, const autograd::Backward& backward,
                  const std::vector<bool>& defined) {
  for (const auto& [inner, outer] : backward.inside) {
    TORCH_CHECK(!defined[outer] || !hooks.has(inner),
                "a result of a compiled function has a hook on its gradient (register_hook, retain_grad), and another "
                "result was computed from it and from what it was computed from: the hook can't be given all of the "
                "gradient. Register it inside of the function, where the result is computed, or keep the function out "
                "by @magneto.disable");
  }
}

}  // namespace magneto::runtime
