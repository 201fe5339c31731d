// torch.autograd.graph.saved_tensors_hooks and save_on_cpu, around operators of the segment.
//
// While such hooks are on, autograd calls them for the stand-ins that it saves: `pack` when an operator is captured,
// `unpack` when the engine runs for the backward. Both are interpreted, so what they compute is a part of the forward
// and of the backward, and what a lossy hook does to a saved tensor is in the gradients. The torch level turns the same
// hooks on, and autograd calls them in each run: so they have to be functions that change nothing. A segment that would
// end between the two calls ends in front of the first one.
#include <ATen/SavedTensorHooks.h>

#include <algorithm>

#include "capture/calls/callbacks.h"
#include "capture/calls/deferred.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/interpreter/errors.h"
#include "capture/torch/autograd_functions.h"
#include "capture/torch/gradients.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "graph/aliases.h"
#include "python/imported.h"

namespace magneto::capture {

namespace {

/// What autograd calls in place of the program's function.
PyObject* call_pack(PyObject* function, PyObject* saved) {
  if (Capture* capture = Capture::current()) return capture->gradients.pack_saved(function, saved);
  PyErr_SetString(PyExc_RuntimeError, "a saved tensor of a capture is packed behind it");
  return nullptr;
}

PyObject* call_unpack(PyObject* function, PyObject* packed) {
  Capture* const capture = Capture::current();
  if (capture && PyList_GET_SIZE(packed) == 1) {
    return capture->gradients.call_saved_hook(function, PyList_GET_ITEM(packed, 0));
  }
  PyErr_SetString(PyExc_RuntimeError, "a saved tensor of a capture is read behind it");
  return nullptr;
}

Ref hook_of_capture(bool packs, PyObject* function) {
  static PyMethodDef pack = {"pack", call_pack, METH_O, nullptr}, unpack = {"unpack", call_unpack, METH_O, nullptr};
  return checked(PyCFunction_New(packs ? &pack : &unpack, function));
}

PyObject* push_function() {
  static constinit Imported push("torch._C._autograd", "_push_saved_tensors_default_hooks");
  return push.get();
}

PyObject* pop_function() {
  static constinit Imported pop("torch._C._autograd", "_pop_saved_tensors_default_hooks");
  return pop.get();
}

}  // namespace

bool Gradients::push_saved_hooks(PyObject* pack, PyObject* unpack) {
  if (!c.frame || is_transforming() || c.mode.called_back_from || c.mode.backwards_run) return false;
  const Ref place = site();
  if (is_opaque(place)) return false;
  const Ref packs = constant_function(c, pack), unpacks = constant_function(c, unpack);
  if (!packs || !unpacks) return false;
  static constinit Imported partial("functools", "partial");
  const Ref target =
      checked(PyObject_CallFunctionObjArgs(partial.get(), push_function(), packs.get(), unpacks.get(), nullptr));
  // As the program has them: what they close over is interpreted, too.
  const Ref packs_here = hook_of_capture(true, pack), unpacks_here = hook_of_capture(false, unpack);
  c.torch.record(
      graph::TorchNode::Kind::CallFunction, target.get(), {}, nullptr,
      [&] { return PyObject_CallFunctionObjArgs(push_function(), packs_here.get(), unpacks_here.get(), nullptr); },
      /*always=*/true);
  at::SavedTensorDefaultHooks::set_tracing(false);
  saved_hooks_.push_back({place, c.graph.aten_nodes.size(), /*on=*/true});
  return true;
}

bool Gradients::pop_saved_hooks() {
  const auto last =
      std::find_if(saved_hooks_.rbegin(), saved_hooks_.rend(), [](const SavedHooks& one) { return one.on; });
  if (last == saved_hooks_.rend() || c.mode.called_back_from) return false;
  c.torch.record(
      graph::TorchNode::Kind::CallFunction, pop_function(), {}, nullptr,
      [] { return PyObject_CallNoArgs(pop_function()); }, /*always=*/true);
  last->on = false;
  for (size_t i = last->operators; i < c.graph.aten_nodes.size(); ++i) {
    const graph::AtenNode& node = c.graph.aten_nodes[i];
    // Of ours, which save something else than eager's.
    if (graph::has_regions(node) || node.op.operator_name().name.starts_with("magneto::")) {
      break_at_saved_hooks("they are on around " + node.op.operator_name().name);
    }
  }
  if (std::ranges::none_of(saved_hooks_, &SavedHooks::on)) at::SavedTensorDefaultHooks::set_tracing(true);
  return true;
}

void Gradients::check_saved_hooks() {
  if (std::ranges::any_of(saved_hooks_, &SavedHooks::on)) break_at_saved_hooks("the segment ends while they are on");
}

void Gradients::break_at_saved_hooks(const std::string& why) {
  for (const SavedHooks& hooks : saved_hooks_) c.feedback.opaque_backwards.emplace_back(hooks.site, why);
  throw Retry{};
}

PyObject* Gradients::pack_saved(PyObject* function, PyObject* saved) {
  const Ref packed = Ref::steal(call_saved_hook(function, saved));
  if (!packed) return nullptr;
  Ref holder = Ref::steal(PyList_New(1));
  if (!holder) return nullptr;
  PyList_SET_ITEM(holder.get(), 0, Py_NewRef(packed.get()));
  packed_.push_back(holder);
  return holder.release();
}

/// What is packed may be what the node that holds it has made.
Gradients::~Gradients() {
  for (const Ref& holder : packed_) PyList_SetSlice(holder.get(), 0, 1, nullptr);
}

PyObject* Gradients::call_saved_hook(PyObject* function, PyObject* saved) {
  const CalledBack called_back(c.mode);
  const int64_t writes = c.overlays.writes;
  const size_t deferred = c.deferred.calls.size(), torch_nodes = c.graph.torch_nodes.size();
  const size_t operators = c.graph.aten_nodes.size();
  const int32_t node = c.session->torch_node;
  const auto give_up = [&](const char* why) {
    try {
      break_at_saved_hooks(why);
    } catch (...) {
      return c.errors.interrupt_c_code(std::current_exception());
    }
  };
  // At the segment's end no frame is there for a call that is none of Python's.
  if (!PyFunction_Check(function) && !c.frame) return give_up("one is not a plain function");
  PyObject* result = PyFunction_Check(function) ? PyObject_CallOneArg(function, saved)
                                                : c.callbacks.call_from_c(function, &saved, 1, nullptr);
  // The torch level has the operator that saves; autograd calls the hook.
  c.session->torch_node = node;
  c.graph.torch_nodes.resize(torch_nodes);
  for (size_t i = operators; i < c.graph.aten_nodes.size(); ++i) c.graph.aten_nodes[i].torch_node = node;
  if (!result || (c.overlays.writes == writes && c.deferred.calls.size() == deferred)) return result;
  Py_DECREF(result);
  return give_up("they change objects from outside");
}

}  // namespace magneto::capture
