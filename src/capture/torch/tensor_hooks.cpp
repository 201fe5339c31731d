// Hooks on gradients: Tensor.register_hook, Tensor.retain_grad, register_multi_grad_hook, those of modules.
//
// A hook on a tensor with a history, by a function that changes nothing and closes over nothing that the segment has
// made, hangs on the stand-in's history, so that autograd's engine calls it in its place when it runs on stand-ins, and
// what it computes is in the joint graph; the torch level registers it in each run. Any other, and one whose handle is
// used, is registered by each run at the segment's end, on what is then in the tensor's place: a result, which has a
// backward of its own. Where that can't be (the tensor is written after it, or has no place where all of its gradient
// comes by), the hook is a side exit.
#include <algorithm>
#include <utility>

#include "autograd/interpreted_hook.h"
#include "autograd/nodes.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/exits/rebuild.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/torch/autograd_functions.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using runtime::PlanOp;

namespace {

/// By what a hook is known in later captures.
PyObject* key_of(PyObject* hook) {
  static constinit Imported partial("functools", "partial");
  while (Py_TYPE(hook) == partial.type()) hook = checked(PyObject_GetAttrString(hook, "func")).get();  // which it keeps
  if (PyMethod_Check(hook)) hook = PyMethod_GET_FUNCTION(hook);
  return PyFunction_Check(hook) ? PyFunction_GET_CODE(hook) : hook;
}

PyTypeObject* several_class() {
  static constinit Imported cls("magneto._hooks", "SeveralHandle");
  return cls.type();
}

bool is_dropped(const InterpFrame& f) { return f.result_is_pushed && f.info->instrs[f.instr().next].op == Op::POP_TOP; }

PyTypeObject* handle_class() {
  static constinit Imported cls("magneto._hooks", "HookHandle");
  return cls.type();
}

bool are_equal_sites(PyObject* a, PyObject* b) {
  return PyTuple_CheckExact(a) && PyTuple_GET_ITEM(a, 0) == PyTuple_GET_ITEM(b, 0) &&
         PyLong_AsLong(PyTuple_GET_ITEM(a, 1)) == PyLong_AsLong(PyTuple_GET_ITEM(b, 1));
}

int64_t version_of(PyObject* tensor) { return unpack_tensor(tensor)._version(); }

const c10::StorageImpl* memory_of(const at::Tensor& fake) {
  return fake.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

bool is_on(const Gradients::HookAtEnd& hook, PyObject* tensor) {
  return std::ranges::any_of(hook.tensors, [&](const auto& one) { return one.first.get() == tensor; });
}

}  // namespace

Ref Gradients::site() const {
  return checked(Py_BuildValue("(Oi)", c.frame->info->code, static_cast<int>(c.frame->pc)));
}

bool Gradients::is_opaque(const Ref& site) const {
  return std::ranges::any_of(c.feedback.opaque_backwards,
                             [&](const auto& known) { return are_equal_sites(known.first.get(), site.get()); });
}

bool is_hook_handle(PyObject* object) {
  return Py_TYPE(object) == handle_class() || Py_TYPE(object) == several_class();
}

Ref Gradients::register_hook(const CallArgs& args) {
  if (args.values.empty() || !c.frame) return {};
  PyObject* on = args.values[0];
  PyObject* mode = nullptr;  // of several
  if (args.kwnames) {
    const bool named = args.values.size() == 3 && args.positional() == 2 &&
                       PyUnicode_CompareWithASCIIString(args.keyword(2), "mode") == 0;
    mode = named && !is_tensor(on) ? args.values[2] : nullptr;
    if (!mode || !PyUnicode_CheckExact(mode)) return {};
  }
  if (is_hook_handle(on)) {
    for (HookAtEnd& hook : hooks_at_end) hook.removed |= hook.handle.get() == on;
    return Ref::borrow(Py_None);
  }
  if (args.values.size() < 2) return {};
  HookAtEnd hook{.tensors = {}, .site = site(), .function = Ref::borrow(args.values[1])};
  const auto noted = [](PyObject* tensor) { return std::pair(Ref::borrow(tensor), version_of(tensor)); };
  if (is_tensor(on)) {
    if (args.values.size() == 2) {
      if (Ref done = interpret_hook(on, args.values[1])) return done;
    } else {
      hook.original = noted(args.values[2]);
    }
    hook.tensors.push_back(noted(on));
    hook.handle = checked(handle_class()->tp_alloc(handle_class(), 0));
  } else {
    const Ref tensors = c.containers.resolve(on);
    if (args.positional() != 2) return {};
    hook.any = mode && PyUnicode_CompareWithASCIIString(mode, "any") == 0;
    if (mode && !hook.any && PyUnicode_CompareWithASCIIString(mode, "all") != 0) return {};
    if (!PyList_CheckExact(tensors.get()) && !PyTuple_CheckExact(tensors.get())) return {};
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(tensors.get()); ++i) {
      PyObject* tensor = PySequence_Fast_GET_ITEM(tensors.get(), i);
      if (!is_tensor(tensor)) return {};
      hook.tensors.push_back(noted(tensor));
    }
    if (hook.tensors.empty()) return {};
    hook.several = true;
    hook.handle = checked(several_class()->tp_alloc(several_class(), 0));
  }
  const Ref handle = hook.handle;
  return hook_at_end(std::move(hook)) ? handle : Ref();
}

bool Gradients::retain_gradient(PyObject* tensor) {
  if (!is_fake_tensor(tensor) || !c.frame) return false;
  return hook_at_end({.tensors = {{Ref::borrow(tensor), version_of(tensor)}}, .site = site()});
}

/// Null: it is not known to be a function that changes nothing.
Ref Gradients::interpret_hook(PyObject* object, PyObject* hook) {
  if (!is_fake_tensor(object)) return {};
  const at::Tensor& tensor = unpack_tensor(object);
  const auto node = tensor.grad_fn();
  const bool plain = is_exact_tensor_type(Py_TYPE(object)) && node && !c.tensors.is_input(object);
  if (!plain || !is_dropped(*c.frame) || is_transforming()) return {};
  if (std::ranges::any_of(hooks_at_end, [&](const HookAtEnd& other) { return is_on(other, object); })) return {};
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
  hooks.emplace_back(Ref::borrow(key_of(hook)), Ref::borrow(object));
  std::string why = c.options.wants_backward ? rehearse({tensor}) : std::string();
  if (!why.empty()) retry_without(key_of(hook), std::move(why));
  return Ref::borrow(Py_None);
}

bool Gradients::may_be_hooked(PyObject* object, bool of_module) const {
  if (!is_fake_tensor(object)) return false;
  const at::Tensor& tensor = unpack_tensor(object);
  if ((!c.tensors.is_input(object) && !is_exact_tensor_type(Py_TYPE(object))) || !tensor.requires_grad()) return false;
  if (c.session->value_of(tensor) == graph::kNoValue) return false;
  if (tensor.grad_fn() && !tensor.grad_fn()->tensor_pre_hooks().empty()) return false;  // of interpreted hooks
  // In eager, one of a module comes behind all others.
  return std::ranges::none_of(
      hooks_at_end, [&](const HookAtEnd& other) { return is_on(other, object) && (of_module || other.original); });
}

/// Nothing in the segment sees what the hook does: autograd calls it when the program has gone on.
bool Gradients::hook_at_end(HookAtEnd hook) {
  if (is_transforming() || c.mode.called_back_from || c.mode.backwards_run) return false;
  for (const auto& [tensor, version] : hook.tensors) {
    if (!may_be_hooked(tensor.get(), hook.original.has_value())) return false;
  }
  if (is_opaque(hook.site)) return false;
  hooks_at_end.push_back(std::move(hook));
  ++c.overlays.writes;
  note_beside_hook();
  return true;
}

/// What the program goes on with beside the tensor, in its variables: of `x + f(x)`, with the hook in `f`, it is `x`.
void Gradients::note_beside_hook() {
  for (const InterpFrame* f = c.frame; f; f = f->caller) {
    for (int32_t i = 0; i < f->info->nlocals + f->depth; ++i) {
      PyObject* object = f->slots[i];
      if (!object || !is_fake_tensor(object) || !is_exact_tensor_type(Py_TYPE(object))) continue;
      const at::Tensor& tensor = unpack_tensor(object);
      const bool known = std::ranges::any_of(beside_hooks_, [&](const Ref& one) { return one.get() == object; });
      if (known || c.tensors.is_input(object) || !tensor.grad_fn() || tensor.is_view()) continue;
      if (c.session->value_of(tensor) != graph::kNoValue) beside_hooks_.push_back(Ref::borrow(object));
    }
  }
}

/// Makes results of them, too: where gradients pass a hook by, they come together again there. False: there are none.
bool Gradients::hand_on_beside_hooks() {
  bool any = false;
  for (const Ref& object : std::exchange(beside_hooks_, {})) {
    const at::Tensor& tensor = unpack_tensor(object.get());
    const auto shares = [&](const at::Tensor& other) {
      return !other.defined() || memory_of(other) == memory_of(tensor);
    };
    if (std::ranges::any_of(c.exits.rebuilder->outputs(), shares)) continue;
    const auto shares_input = [&](const auto& input) {
      return shares(unpack_tensor(c.tensors.fake_of.at(input.second.real.get()).get()));
    };
    if (std::ranges::any_of(c.tensors.inputs, shares_input)) continue;
    c.exits.rebuilder->build(object.get());
    any = true;
  }
  return any;
}

void Gradients::break_at_hook(const HookAtEnd& hook, std::string why) {
  c.feedback.opaque_backwards.emplace_back(hook.site, std::move(why));
  throw Retry{};
}

void Gradients::break_at_hook(graph::ValueId result, const std::string& why) {
  if (!hooked.contains(result)) return;
  const auto is_it = [&](const HookAtEnd& hook) {
    return std::ranges::any_of(hook.tensors, [&](const auto& tensor) {
      return c.session->value_of(unpack_tensor(tensor.first.get())) == result;
    });
  };
  break_at_hook(*std::ranges::find_if(hooks_at_end, is_it), why);
}

/// In eager, a hook of a module makes a view, where there is a copy: the two must not be told apart.
void Rebuilder::check_copy(const Gradients::HookAtEnd& hook) {
  const auto& [original, version] = *hook.original;
  if (version_of(original.get()) != version) c.gradients.break_at_hook(hook, "the tensor of a hook is written");
  const auto shares = [](PyObject* object) {
    return [memory = memory_of(unpack_tensor(object))](const at::Tensor& other) {
      return other.defined() && memory_of(other) == memory;
    };
  };
  bool seen = std::ranges::any_of(output_tensors_, shares(original.get()));
  for (const auto& [id, input] : c.tensors.inputs) {
    seen = seen || shares(original.get())(unpack_tensor(c.tensors.fake_of.at(input.real.get()).get()));
  }
  if (seen && std::ranges::any_of(output_tensors_, shares(hook.tensors[0].first.get()))) {
    c.gradients.break_at_hook(hook, "a result shares the memory of what a module with hooks is given, or gives");
  }
}

void Rebuilder::gradient_hooks() {
  static constinit Imported registers("torch", "Tensor.register_hook"), retains("torch", "Tensor.retain_grad"),
      registers_several("torch.autograd.graph", "register_multi_grad_hook"),
      registers_any("magneto._hooks", "register_any"), fill("magneto._hooks", "fill");
  using Hook = Gradients::HookAtEnd;
  Gradients& gradients = c.gradients;
  gradients.check_frozen();
  gradients.check_saved_hooks();
  // Hooks that others put on what is handed on come behind the segment's, and see what these have made of the gradient.
  for (const auto& [key, tensor] : gradients.hooks) {
    if (c.options.wants_backward && memo_.contains(tensor.get())) {
      gradients.retry_without(key.get(), "its tensor is handed on");
    }
  }
  for (const Hook& hook : gradients.hooks_at_end) {
    if (hook.original) check_copy(hook);
  }
  std::vector<std::pair<PyObject*, int32_t>> handles;
  const auto call = [&](const Hook& hook, PyObject* function) {
    for (const auto& [object, version] : hook.tensors) {
      const at::Tensor& tensor = unpack_tensor(object.get());
      // retain_grad() goes with the tensor when it is written.
      if (!tensor.requires_grad() || (hook.function && tensor._version() != version)) {
        gradients.break_at_hook(hook, "the tensor of a hook is written");
      }
      const bool rewritten = tensor.grad_fn() && !autograd::is_history(*tensor.grad_fn());
      if (c.tensors.is_input(object.get()) && rewritten) {
        gradients.break_at_hook(hook, "the tensor of a hook, from outside, is written");
      }
    }
    try {
      std::vector<int32_t> on;
      for (const auto& [tensor, version] : hook.tensors) on.push_back(build(tensor.get()));
      std::vector<int32_t> args = {constant(function), hook.several ? emit(PlanOp::Tuple, std::move(on)) : on.front()};
      if (hook.function) args.push_back(build(hook.function.get()));
      for (const auto& [tensor, version] : hook.tensors) {
        const graph::ValueId id = c.session->value_of(unpack_tensor(tensor.get()));
        if (!c.tensors.inputs.contains(id)) gradients.hooked.insert(id);
      }
      return emit(PlanOp::Call, std::move(args));
    } catch (const Abandon& abandon) {
      gradients.break_at_hook(hook, abandon.message);
    }
  };
  for (const Hook& hook : gradients.hooks_at_end) {
    if (!hook.function) continue;
    PyObject* const function = (hook.any ? registers_any : hook.several ? registers_several : registers).get();
    const int32_t registered = hook.removed ? constant(Py_None) : call(hook, function);
    if (hook.handle) handles.emplace_back(hook.handle.get(), registered);
  }
  // What nobody gets has a gradient that nobody sees.
  for (const Hook& hook : gradients.hooks_at_end) {
    PyObject* const tensor = hook.tensors.empty() ? nullptr : hook.tensors[0].first.get();
    if (!hook.function && (memo_.contains(tensor) || c.tensors.is_input(tensor))) call(hook, retains.get());
  }
  for (const auto& [handle, registered] : handles) {
    if (const auto made = memo_.find(handle); made != memo_.end()) {
      emit(PlanOp::Call, {constant(fill.get()), made->second, registered});
    }
  }
}

/// It is filled in when the hook is registered.
int32_t Rebuilder::build_hook_handle(PyObject* value) {
  static constinit Imported one("torch.utils.hooks", "RemovableHandle"),
      several("torch.autograd.graph", "_MultiHandle");
  PyObject* const cls = (Py_TYPE(value) == several_class() ? several : one).get();
  const int32_t handle = memo_[value] = emit(PlanOp::NewInstance, {}, cls);
  fill_instance_dict(handle, value);
  return handle;
}

}  // namespace magneto::capture
