// Tensor.register_hook of a tensor with a history. The hook hangs on the stand-in's, so that autograd's engine calls it
// in its place when it runs on stand-ins, and what it computes is in the joint graph; the torch level registers it in
// each run. A hook that changes something, or closes over what the segment has made, is a side exit; so is one whose
// handle is used.
#include "autograd/interpreted_hook.h"
#include "capture/capture.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/torch/autograd_functions.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/world.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// By what a hook is known in later captures.
PyObject* key_of(PyObject* hook) {
  if (PyMethod_Check(hook)) hook = PyMethod_GET_FUNCTION(hook);
  return PyFunction_Check(hook) ? PyFunction_GET_CODE(hook) : hook;
}

bool is_dropped(const InterpFrame& f) { return f.result_is_pushed && f.info->instrs[f.instr().next].op == Op::POP_TOP; }

}  // namespace

Ref Gradients::register_hook(const CallArgs& args) {
  if (args.values.size() != 2 || args.kwnames || !is_fake_tensor(args.values[0]) || !c.frame) return {};
  PyObject *object = args.values[0], *hook = args.values[1];
  const at::Tensor& tensor = unpack_tensor(object);
  const auto node = tensor.grad_fn();
  const bool plain = is_exact_tensor_type(Py_TYPE(object)) && node && !c.tensors.is_input(object);
  if (!plain || !is_dropped(*c.frame) || is_transforming()) return {};
  if (!why_opaque(key_of(hook)).empty()) return {};
  const Ref function = constant_function(c, hook);
  if (!function) return {};
  c.world.keep(function);
  static constinit Imported hooked("magneto._forward", "hooked");
  const Ref target = checked(PyObject_CallOneArg(hooked.get(), function.get()));
  c.torch.record(
      graph::TorchNode::Kind::CallFunction, target.get(), {&object, 1}, nullptr,
      [&] {
        node->add_tensor_pre_hook(std::make_unique<autograd::InterpretedHook>(function, tensor.output_nr()));
        return Py_NewRef(Py_None);
      },
      /*always=*/true);
  hooks.push_back(Ref::borrow(key_of(hook)));
  std::string why = c.options.wants_backward ? rehearse({tensor}) : std::string();
  if (!why.empty()) retry_without(key_of(hook), std::move(why));
  return Ref::borrow(Py_None);
}

}  // namespace magneto::capture
