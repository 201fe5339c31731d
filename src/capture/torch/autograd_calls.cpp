// torch.autograd.grad, called by the program.
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <string_view>

#include "autograd/nodes.h"
#include "capture/capture.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/containers.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// Autograd calls Python code when it comes by the tensor.
bool has_hooks(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return false;
  if (!torch::autograd::impl::hooks(tensor).empty()) return true;
  const auto& node = tensor.grad_fn();
  return node && !(node->tensor_pre_hooks().empty() && node->pre_hooks().empty() && node->post_hooks().empty());
}

/// The tensors of an argument that is one or a list or tuple of them; false: it may be something else.
bool add_tensors(const Ref& argument, torch::autograd::variable_list& tensors) {
  const auto add = [&](PyObject* one) {
    if (is_tensor(one)) tensors.push_back(unpack_tensor(one));
    return is_tensor(one);
  };
  if (!PyList_Check(argument.get()) && !PyTuple_Check(argument.get())) return add(argument.get());
  PyObject** items = PySequence_Fast_ITEMS(argument.get());
  return std::all_of(items, items + PySequence_Fast_GET_SIZE(argument.get()), add);
}

/// torch.autograd.grad for inputs, through other inputs that may have been computed from them, or through operators
/// without a derivative: on stand-ins that way does not go on.
bool leads_out(Capture& capture, const CallArgs& args) {
  torch::autograd::variable_list roots, ends;
  for (size_t i = 0; i < args.values.size(); ++i) {
    const char* name = args.keyword(i) ? PyUnicode_AsUTF8(args.keyword(i))
                       : i == 0        ? "outputs"
                       : i == 1        ? "inputs"
                                       : "";
    const bool root = name == std::string_view("outputs"), end = name == std::string_view("inputs");
    if ((root || end) && !add_tensors(capture.containers.resolve(args.values[i]), root ? roots : ends)) return true;
  }
  const auto is_input = [&](const at::Tensor& tensor) {
    const graph::ValueId id = capture.session->value_of(tensor);
    return id == graph::kNoValue || capture.graph.values[id].kind == graph::ValueKind::Input;
  };
  std::erase_if(roots, [](const at::Tensor& root) { return !root.requires_grad(); });  // eager's error, as ours
  std::erase_if(ends, [](const at::Tensor& end) { return !end.requires_grad(); });
  return (std::ranges::any_of(ends, is_input) && autograd::passes(roots, ends, autograd::is_history)) ||
         autograd::passes(roots, ends, autograd::lacks_derivative);
}

}  // namespace

/// torch.autograd.grad: a torch call, where the engine's way does not lead out of the segment.
Ref Gradients::call_gradient(PyObject* function, const CallArgs& args) {
  if (is_transforming() || std::ranges::any_of(args.values, holds_transformed))
    return c.torch.call_torch(function, args);
  for (const auto& [id, input] : c.tensors.inputs) {
    if (!has_hooks(unpack_tensor(input.real.get()))) continue;
    c.side_exit(BreakReason::AutogradCall, callable_name(function) + " calls hooks of " + input.source->name());
  }
  if (!hooks_at_end.empty()) {
    c.side_exit(BreakReason::AutogradCall, callable_name(function) + " may call hooks that were registered before");
  }
  if (!classes_.empty()) {
    c.side_exit(BreakReason::AutogradCall,
                callable_name(function) + " is called behind tensors whose class has a __torch_dispatch__");
  }
  if (leads_out(c, args)) {
    c.side_exit(BreakReason::AutogradCall,
                callable_name(function) + " may pass what an input was computed by, before the function was called");
  }
  try {
    return c.torch.call_torch(function, args);
  } catch (const PythonError&) {  // of the program, or of the engine on stand-ins
    PyErr_Clear();
    c.side_exit(BreakReason::AutogradCall, "call of " + callable_name(function));
  }
}

}  // namespace magneto::capture
