// torch.autograd.grad and backward(), called by the program, where autograd's engine calls code of the program on its
// way: the backwards of custom functions, and hooks that change nothing. It is interpreted on stand-ins, so what it
// computes is in the graph; at the torch level, autograd calls it in each run.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <optional>

#include "autograd/leftover_tasks.h"
#include "autograd/nodes.h"
#include "capture/calls/deferred.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/torch/class_tensors.h"
#include "capture/torch/gradients.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/overlays.h"
#include "python/imported.h"
#include "support/gil.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using torch::autograd::variable_list;

bool Gradients::calls_code(PyObject* function, const variable_list& roots, const variable_list& ends) {
  const std::vector<PyObject*> contexts = autograd::contexts_on_way(roots, ends);
  for (PyObject* context : contexts) {
    if (autograd::belongs_to_operator(context)) continue;
    PyObject* const custom = autograd::function_of(context);
    const std::string why = custom ? why_opaque(custom) : "its class is not known";
    if (why.empty()) continue;
    c.side_exit(BreakReason::AutogradCall, callable_name(function) + " calls the backward of a custom function (" +
                                               (custom ? callable_name(custom) : "") + "): " + why);
  }
  return !contexts.empty() || !saved_hooks_.empty() || !classes_.empty() ||
         autograd::passes(roots, ends, autograd::calls_hooks);
}

bool Gradients::fits(const EngineCall& call) const {
  if (!call.tangents.empty() && call.tangents.size() != call.roots.size()) return false;
  for (size_t i = 0; i < call.tangents.size(); ++i) {
    const at::Tensor& tangent = call.tangents[i];
    if (tangent.defined() && c.session->sizes_of(tangent) != c.session->sizes_of(call.roots[i])) return false;
  }
  return true;
}

Ref Gradients::record_engine(PyObject* target, std::span<PyObject* const> values, PyObject* kwnames,
                             const EngineCall& call) {
  const int64_t writes = c.overlays.writes;
  const size_t deferred = c.deferred.calls.size();
  const size_t index = c.graph.torch_nodes.size(), operators = c.graph.aten_nodes.size();
  Ref results = c.torch.record(graph::TorchNode::Kind::CallFunction, target, values, kwnames,
                               [&] { return interpret_engine(call); });
  if (c.overlays.writes != writes || c.deferred.calls.size() != deferred) {  // which the call would do again
    throw c.exits.restart_before(*c.frame, "code that a backward calls changes objects from outside");
  }
  if (c.graph.torch_nodes.size() == index) return results;  // no operator was called
  c.graph.torch_nodes.resize(index + 1);
  for (size_t i = operators; i < c.graph.aten_nodes.size(); ++i) {
    c.graph.aten_nodes[i].torch_node = static_cast<int32_t>(index);
  }
  return results;
}

/// A tuple of gradients, with None where there is none; null: an error is set.
PyObject* Gradients::interpret_engine(const EngineCall& call) {
  variable_list found;
  const bool ran = c.session->set_engine_runs(true);
  bool raised = false;
  {
    std::optional<AboveClasses> above;
    if (!classes_.empty()) above.emplace(c);
    const CalledBack called_back(c.mode);
    c.mode.engine_runs = true;
    try {
      const WithoutGil without_gil;
      found = torch::autograd::grad(call.roots, call.ends, call.tangents, call.retains, call.differentiable,
                                    call.allows_unused);
    } catch (const std::exception& error) {  // of the engine, of what it calls, or of the program
      raised = true;
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
    }
  }
  c.session->set_engine_runs(ran);
  if (raised) {
    const SavedError error;
    autograd::drop_leftover_tasks();
  }
  if (raised) return nullptr;
  Ref results = checked(PyTuple_New(static_cast<Py_ssize_t>(found.size())));
  for (size_t i = 0; i < found.size(); ++i) {
    PyTuple_SET_ITEM(results.get(), i, found[i].defined() ? tensor_object(found[i]) : Py_NewRef(Py_None));
  }
  return results.release();
}

}  // namespace magneto::capture
