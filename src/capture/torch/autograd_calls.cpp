// torch.autograd.grad, called by the program.
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <string_view>

#include "autograd/nodes.h"
#include "capture/capture.h"
#include "capture/feedback.h"
#include "capture/torch/class_tensors.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/containers.h"
#include "fake/session.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using torch::autograd::variable_list;

namespace {

/// Autograd calls Python code when it comes by the tensor.
bool has_hooks(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return false;
  if (!torch::autograd::impl::hooks(tensor).empty()) return true;
  const auto& node = tensor.grad_fn();
  return node && !(node->tensor_pre_hooks().empty() && node->pre_hooks().empty() && node->post_hooks().empty());
}

/// The tensors of an argument that is one or a list or tuple of them; false: it may be something else.
bool add_tensors(const Ref& argument, variable_list& tensors) {
  const auto add = [&](PyObject* one) {
    if (is_tensor(one)) tensors.push_back(unpack_tensor(one));
    return is_tensor(one);
  };
  if (!PyList_Check(argument.get()) && !PyTuple_Check(argument.get())) return add(argument.get());
  PyObject** items = PySequence_Fast_ITEMS(argument.get());
  return std::all_of(items, items + PySequence_Fast_GET_SIZE(argument.get()), add);
}

/// One of the other arguments of torch.autograd.grad. False: a way of it that is not interpreted.
bool takes(std::string_view name, const Ref& value, Gradients::EngineCall& call) {
  if (name == "grad_outputs") {
    if (value.get() == Py_None) return true;
    const bool several = PyList_Check(value.get()) || PyTuple_Check(value.get());
    const Ref items = several ? checked(PySequence_Tuple(value.get())) : checked(PyTuple_Pack(1, value.get()));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
      PyObject* const item = PyTuple_GET_ITEM(items.get(), i);
      if (item != Py_None && !is_tensor(item)) return false;
      call.tangents.push_back(item == Py_None ? at::Tensor() : unpack_tensor(item));
    }
    return true;
  }
  if (name == "retain_graph" && value.get() == Py_None) return true;
  if (!PyBool_Check(value.get())) return false;
  const bool on = value.get() == Py_True;
  if (name == "retain_graph") {
    call.retains = on;
  } else if (name == "create_graph") {
    call.differentiable = on;
  } else if (name == "allow_unused") {
    call.allows_unused = on;
  } else if (name != "only_inputs" || !on) {
    return name == "materialize_grads" || name == "is_grads_batched" ? !on : false;
  }
  return true;
}

}  // namespace

/// A side exit where the engine's way from `roots` to `ends` leads through other inputs that may have been computed
/// from these, or through operators without a derivative: on stand-ins that way does not go on. So does one that calls
/// hooks. `ends`: none where all leaves are meant.
void Gradients::refuse_way(PyObject* function, variable_list roots, variable_list ends) {
  const auto leave = [&](const std::string& why) {
    c.side_exit(BreakReason::AutogradCall, callable_name(function) + why);
  };
  for (const auto& [id, input] : c.tensors.inputs) {
    if (has_hooks(unpack_tensor(input.real.get()))) leave(" calls hooks of " + input.source->name());
  }
  // backward() keeps the gradients of what retain_grad() was called for, as it is still.
  const auto is_called = [&](const HookAtEnd& hook) {
    const at::Tensor& tensor = unpack_tensor(hook.tensors.front().first.get());
    return hook.function || !ends.empty() || tensor._version() != hook.tensors.front().second || tensor.is_view();
  };
  if (std::ranges::any_of(hooks_at_end, is_called)) leave(" may call hooks that were registered before");
  const auto is_input = [&](const at::Tensor& tensor) {
    const graph::ValueId id = c.session->value_of(tensor);
    return id == graph::kNoValue || c.graph.values[id].kind == graph::ValueKind::Input;
  };
  const auto is_constant = [](const at::Tensor& tensor) { return !tensor.requires_grad(); };  // eager's error, as ours
  // What autograd has saved of a leaf is the leaf itself, with the data that it then has.
  const auto is_older = [&](const torch::autograd::Node& node) { return node.sequence_nr() < data_set_at_; };
  if (reads_set_data(0) && autograd::passes(roots, ends, is_older)) {
    c.side_exit(BreakReason::AutogradCall, "gradients are computed behind a write of tensor.data");
  }
  const bool of_inputs = ends.empty() || std::ranges::any_of(ends, is_input);
  std::erase_if(roots, is_constant);
  std::erase_if(ends, is_constant);
  if ((of_inputs && autograd::passes(roots, ends, autograd::is_history)) ||
      autograd::passes(roots, ends, autograd::lacks_derivative)) {
    leave(" may pass what an input was computed by, before the function was called");
  }
}

/// torch.autograd.grad: a torch call, where the engine's way does not lead out of the segment.
Ref Gradients::call_gradient(PyObject* function, const CallArgs& args) {
  static constinit Imported grad("torch.autograd", "grad");
  if (function != grad.get()) return call_backward(function, args);
  const bool of_classes = std::ranges::any_of(args.values, holds_class_tensor);
  // What a transform gave is of its level still, when it has been left.
  if (!of_classes && (is_transforming() || std::ranges::any_of(args.values, holds_transformed))) {
    return call_in_transforms(c, function, args);
  }
  if (is_transforming() || (of_classes && c.torch.is_overridden(args.values)))
    return c.torch.call_torch(function, args);
  EngineCall engine{.allows_unused = false};
  bool plain = !c.torch.is_overridden(args.values), batched = false;
  std::vector<Ref> readable;
  std::vector<PyObject*> values;
  for (size_t i = 0; i < args.values.size(); ++i) {
    const char* name = args.keyword(i) ? PyUnicode_AsUTF8(args.keyword(i))
                       : i == 0        ? "outputs"
                       : i == 1        ? "inputs"
                       : i == 2        ? "grad_outputs"
                                       : "";
    const bool root = name == std::string_view("outputs"), end = name == std::string_view("inputs");
    if ((root || end) && !add_tensors(c.containers.resolve(args.values[i]), root ? engine.roots : engine.ends)) {
      c.side_exit(BreakReason::AutogradCall, "call of " + callable_name(function));
    }
    batched |= name == std::string_view("is_grads_batched") && args.values[i] == Py_True;
    plain = plain && (root || end || takes(name, c.containers.resolve(args.values[i]), engine));
    values.push_back(readable.emplace_back(c.containers.readable(args.values[i])).get());
  }
  refuse_way(function, engine.roots, engine.ends);
  const auto requires_grad = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
  const bool code = std::ranges::all_of(engine.roots, requires_grad) &&
                    std::ranges::all_of(engine.ends, requires_grad) && calls_code(function, engine.roots, engine.ends);
  if (code && !(plain && fits(engine))) c.side_exit(BreakReason::AutogradCall, "call of " + callable_name(function));
  try {
    return code ? record_engine(function, values, args.kwnames, engine) : c.torch.call_torch(function, args);
  } catch (const PythonError&) {  // of the program, or of the engine on stand-ins
    PyErr_Clear();
    // The rules by which PyTorch maps the engine over several gradients take numbers for sizes.
    if (batched && c.session->impl().has_symbols && !std::exchange(c.feedback.fixed_sizes, true)) throw Retry{};
    frees_unseen_ = true;
    c.side_exit(BreakReason::AutogradCall, "call of " + callable_name(function));
  }
}

}  // namespace magneto::capture
