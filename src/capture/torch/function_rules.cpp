// Custom autograd functions inside transforms of torch.func. PyTorch makes a function of one level for each level, and
// its rules (for vmap, too) are Python code, which runs as it is on stand-ins: what is saved, where and how often, is
// its own answer. The program's methods that it calls are interpreted, and operators below all levels are in the graph.
#include <ATen/LegacyVmapMode.h>

#include <algorithm>

#include "capture/calls/calls.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/numbers/numbers.h"
#include "capture/torch/class_tensors.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

Ref call_in_transforms(Capture& capture, PyObject* function, const CallArgs& args) {
  std::vector<Ref> readable;
  std::vector<PyObject*> values;
  for (PyObject* arg : args.values) {
    readable.push_back(capture.containers.readable(arg));
    values.push_back(readable.back().get());
  }
  return capture.torch.record(graph::TorchNode::Kind::CallFunction, function, values, args.kwnames, [&] {
    const CalledBack called_back(capture.mode);
    capture.mode.torch_runs = true;
    return PyObject_Vectorcall(function, values.data(), args.positional(), args.kwnames);
  });
}

namespace {

/// What PyTorch reads of the class of a custom function; a release that does not know of an attribute reads none.
constexpr const char* kRead[] = {"forward",
                                 "setup_context",
                                 "backward",
                                 "vjp",
                                 "jvp",
                                 "vmap",
                                 "__name__",
                                 "generate_vmap_rule",
                                 "clear_saved_tensors_on_access",
                                 "boxed_grads_call"};

/// Below all levels the tensor needs gradients.
bool needs_grad_below(PyObject* value) {
  if (!is_tensor(value)) return false;
  static constinit Imported unwrapped("torch._C._functorch", "get_unwrapped"),
      is_wrapped("torch._C._functorch", "is_functorch_wrapped_tensor");
  Ref tensor = Ref::borrow(value);
  while (checked(PyObject_CallOneArg(is_wrapped.get(), tensor.get())).get() == Py_True) {
    tensor = checked(PyObject_CallOneArg(unwrapped.get(), tensor.get()));
  }
  return unpack_tensor(tensor.get()).requires_grad();
}

}  // namespace

bool is_of_transforms(std::span<PyObject* const> args) {
  return is_transforming() || (std::ranges::any_of(args, [](PyObject* arg) { return holds_transformed(arg); }) &&
                               std::ranges::none_of(args, holds_class_tensor));
}

Ref apply_in_transforms(Capture& capture, PyObject* function, const CallArgs& given) {
  const auto leave = [&](const std::string& why) {
    capture.side_exit(BreakReason::AutogradCall, "call of " + callable_name(function) + why);
  };
  CallArgs args = given;
  capture.numbers.specialize_all(args);
  if (args.values.empty() || at::impl::VmapMode::current_vmap_level() > 0) leave(" inside torch.autograd.functional");
  if (capture.torch.is_overridden(args.values) || std::ranges::any_of(args.values, holds_class_tensor)) {
    leave(" with tensors of a class inside a transform of torch.func");
  }
  if (!is_without_grad_below() && std::ranges::any_of(args.values, needs_grad_below)) {
    leave(" inside a transform of torch.func, with tensors that need gradients outside of it");
  }
  static constinit Imported base("torch.autograd", "Function");
  for (const char* name : kRead) {
    if (PyObject_HasAttrString(base.get(), name) == 0) continue;
    const Ref key = checked(PyUnicode_InternFromString(name));
    capture.numbers.known(capture.attributes.load_attr(args.values[0], key.get()).get());
  }
  return call_in_transforms(capture, function, args);
}

}  // namespace magneto::capture
