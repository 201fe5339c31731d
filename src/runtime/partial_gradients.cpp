#include "runtime/partial_gradients.h"

#include <torch/csrc/autograd/python_hook.h>

#include <algorithm>
#include <string_view>
#include <typeinfo>

namespace magneto::runtime {

namespace {

/// The hook is on that result of the node, or nobody knows on which. (PyTorch does not export the class.)
bool is_on(const torch::autograd::FunctionPreHook& hook, size_t result) {
  constexpr std::string_view kPython = "N5torch8autograd23PyFunctionTensorPreHookE";
  if (typeid(hook).name() != kPython) return true;
  return static_cast<const torch::autograd::PyFunctionTensorPreHook&>(hook).value_idx == result;
}

}  // namespace

void refuse_hooks(torch::autograd::Node& node, const autograd::Backward& backward, const std::vector<bool>& defined) {
  for (const auto& [inner, outer] : backward.inside) {
    if (!defined[outer]) continue;
    const auto& hooks = node.tensor_pre_hooks();
    const bool has_hook = std::ranges::any_of(hooks, [&](const auto& hook) { return is_on(*hook, inner); });
    TORCH_CHECK(!has_hook && !node.retains_grad_hooks().contains(inner),
                "a result of a compiled function has a hook on its gradient (register_hook, retain_grad), and another "
                "result was computed from it and from what it was computed from: the hook can't be given all of the "
                "gradient. Register it inside of the function, where the result is computed, or keep the function out "
                "by @magneto.disable");
  }
}

}  // namespace magneto::runtime
