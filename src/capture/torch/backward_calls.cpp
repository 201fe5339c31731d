// backward(), called by the program: the gradients of all leaves that it comes to are operators of the graph, as those
// of torch.autograd.grad are, and become `.grad` of the leaves as autograd's own nodes would make them.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "autograd/nodes.h"
#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using torch::autograd::variable_list;

namespace {

/// The arguments of Tensor.backward and torch.autograd.backward, borrowed.
struct BackwardCall {
  PyObject* roots = nullptr;
  PyObject* gradients = Py_None;
  PyObject* retain_graph = Py_None;
  PyObject* create_graph = Py_False;
  PyObject* ends = Py_None;
  PyObject* old_gradients = Py_None;  // grad_variables
};

/// Nothing: arguments of which there are none.
std::optional<BackwardCall> call_of(PyObject* function, const CallArgs& args) {
  using Field = std::pair<std::string_view, PyObject * BackwardCall::*>;
  static const std::vector<Field> of_method = {{"self", &BackwardCall::roots},
                                               {"gradient", &BackwardCall::gradients},
                                               {"retain_graph", &BackwardCall::retain_graph},
                                               {"create_graph", &BackwardCall::create_graph},
                                               {"inputs", &BackwardCall::ends}};
  static const std::vector<Field> of_function = {{"tensors", &BackwardCall::roots},
                                                 {"grad_tensors", &BackwardCall::gradients},
                                                 {"retain_graph", &BackwardCall::retain_graph},
                                                 {"create_graph", &BackwardCall::create_graph},
                                                 {"grad_variables", &BackwardCall::old_gradients},
                                                 {"inputs", &BackwardCall::ends}};
  static constinit Imported method("torch", "Tensor.backward");
  const std::vector<Field>& fields = function == method.get() ? of_method : of_function;
  BackwardCall call;
  for (size_t i = 0; i < args.values.size(); ++i) {
    const auto named = [&](const Field& field) { return field.first == PyUnicode_AsUTF8(args.keyword(i)); };
    const auto field =
        args.keyword(i) ? std::ranges::find_if(fields, named) : fields.begin() + std::min(i, fields.size());
    if (field == fields.end()) return {};
    call.*(field->second) = args.values[i];
  }
  if (!call.roots) return {};
  return call;
}

/// A tuple of the argument's tensors, or of Nones among them; null: it is something else.
Ref as_tuple(Capture& capture, PyObject* argument) {
  const Ref known = capture.containers.resolve(argument);
  const auto is_one = [](PyObject* one) { return one == Py_None || is_fake_tensor(one); };
  if (is_one(known.get())) return checked(PyTuple_Pack(1, known.get()));
  if (!PyList_CheckExact(known.get()) && !PyTuple_CheckExact(known.get())) return {};
  Ref items = checked(PySequence_Tuple(known.get()));
  PyObject** const begin = PySequence_Fast_ITEMS(items.get());
  return std::all_of(begin, begin + PyTuple_GET_SIZE(items.get()), is_one) ? items : Ref();
}

variable_list tensors_in(const Ref& tuple) {
  variable_list tensors;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple.get()); ++i) {
    PyObject* const item = PyTuple_GET_ITEM(tuple.get(), i);
    tensors.push_back(item == Py_None ? at::Tensor() : unpack_tensor(item));
  }
  return tensors;
}

bool is_plain(const at::Tensor& tensor) { return tensor.layout() == at::kStrided && !tensor.is_inference(); }

/// What hangs there already is a gradient that another one is added to in place.
bool takes_sum(Capture& capture, const at::Tensor& leaf, PyObject* grad) {
  if (grad == Py_None) return true;
  if (!is_fake_tensor(grad) || !is_exact_tensor_type(Py_TYPE(grad))) return false;
  const at::Tensor& known = unpack_tensor(grad);
  const bool has_history = known.requires_grad() && (capture.tensors.is_input(grad) || known.is_leaf());
  return is_plain(known) && !has_history && known.scalar_type() == leaf.scalar_type() &&
         known.device() == leaf.device() && capture.session->sizes_of(known) == capture.session->sizes_of(leaf);
}

/// Somebody else has the tensor, or another gradient is a view of it: AccumulateGrad copies it.
bool is_shared(const variable_list& gradients, size_t which) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (i == which || !gradients[i].defined()) continue;
    const bool earlier = i < which && gradients[i].is_same(gradients[which]);
    if (earlier || (gradients[i].is_view() && gradients[i]._base().is_same(gradients[which]))) return true;
  }
  return false;
}

Ref call_method(Capture& capture, const char* name, std::vector<PyObject*> values, PyObject* kwnames = nullptr) {
  const Ref method = checked(PyObject_GetAttrString(reinterpret_cast<PyObject*>(tensor_class()), name));
  return capture.torch.call_torch(method.get(), {std::move(values), kwnames});
}

/// Tensors with a history that were made inside, whose gradients the backward keeps, too: retain_grad() says so.
std::vector<PyObject*> retained(const Gradients& gradients) {
  std::vector<PyObject*> tensors;
  for (const Gradients::HookAtEnd& hook : gradients.hooks_at_end) {
    PyObject* const tensor = hook.tensors.front().first.get();
    if (hook.function || unpack_tensor(tensor).is_leaf() || std::ranges::count(tensors, tensor)) continue;
    tensors.push_back(tensor);
  }
  return tensors;
}

/// What is there already, and the gradient, as retain_grad() adds them.
Ref sum_of_retained(Capture& capture, const Ref& grad, PyObject* gradient) {
  if (grad.get() != Py_None) return call_method(capture, "add", {grad.get(), gradient});
  static constinit Imported contiguous("torch", "contiguous_format");
  static PyObject* const format = checked(Py_BuildValue("(s)", "memory_format")).release();
  return call_method(capture, "clone", {gradient, contiguous.get()}, format);
}

}  // namespace

/// `inputs=` of what is no leaf has it keep its gradient, from then on. Why that can't be here; empty: it can.
std::string Gradients::retain_ends(const Ref& ends) {
  PyObject** const begin = PySequence_Fast_ITEMS(ends.get());
  const std::span<PyObject* const> given(begin, PyTuple_GET_SIZE(ends.get()));
  const auto is_asked_for = [&](PyObject* tensor) { return std::ranges::count(given, tensor) > 0; };
  if (!std::ranges::all_of(retained(*this), is_asked_for)) return "it may come by what retain_grad() was called for";
  for (PyObject* end : given) {
    if (!is_fake_tensor(end) || !unpack_tensor(end).requires_grad() || unpack_tensor(end).is_leaf()) continue;
    if (c.tensors.is_input(end)) return "it is asked for gradients of what was computed before the function was called";
    if (std::ranges::count(given, end) > 1) return "it is asked for one gradient twice";
    const bool known = std::ranges::count(retained(*this), end) > 0;
    if (!known && !retain_gradient(end)) return "it is asked for gradients of what is no leaf";
  }
  return {};
}

Ref Gradients::call_backward(PyObject* function, const CallArgs& args) {
  const auto leave = [&](const std::string& why = {}) {
    c.side_exit(BreakReason::AutogradCall, "call of " + callable_name(function) + (why.empty() ? "" : ": ") + why);
  };
  const std::optional<BackwardCall> call = call_of(function, args);
  if (!call || call->old_gradients != Py_None || is_transforming()) leave();
  const bool differentiable = call->create_graph == Py_True;
  if (!PyBool_Check(call->create_graph)) leave();
  if (differentiable && !at::GradMode::is_enabled()) leave("the gradients are to have gradients");
  if (call->retain_graph != Py_None && !PyBool_Check(call->retain_graph)) leave();
  const Ref roots = as_tuple(c, call->roots), tangents = as_tuple(c, call->gradients);
  Ref ends = as_tuple(c, call->ends);
  if (!roots || !tangents || !ends || c.torch.is_overridden(args.values)) leave();
  const variable_list from = tensors_in(roots);
  if (!std::ranges::all_of(from, [](const at::Tensor& root) { return root.defined() && root.requires_grad(); }))
    leave();
  if (call->ends != Py_None) {
    const std::string why = retain_ends(ends);
    if (!why.empty()) leave(why);
  }
  refuse_way(function, from, {});
  if (call->ends == Py_None) {
    ends = checked(PyList_New(0));
    const auto add = [&](Ref end) {
      if (PyList_Append(ends.get(), end.get()) < 0) throw PythonError{};
    };
    for (const at::Tensor& leaf : autograd::leaves_of(from)) add(Ref::steal(tensor_object(leaf)));
    for (PyObject* tensor : retained(*this)) add(Ref::borrow(tensor));
    ends = checked(PyList_AsTuple(ends.get()));
  }
  const variable_list leaves = tensors_in(ends);
  for (const at::Tensor& end : leaves) {
    if (!end.defined() || !end.requires_grad()) leave("it is asked for gradients of what has none");
  }
  if (leaves.empty()) leave("it is asked for gradients of what is no leaf");
  std::vector<Ref> grads;
  for (size_t i = 0; i < leaves.size(); ++i) {
    PyObject* const leaf = PyTuple_GET_ITEM(ends.get(), i);
    if (!is_fake_tensor(leaf) || !is_plain(leaves[i]) || !is_exact_tensor_type(Py_TYPE(leaf))) leave();
    const auto [real, source] = c.tensors.original(leaf);
    if (real && autograd::has_hooks_behind(unpack_tensor(real))) leave("it calls hooks of " + source->name());
    if (real && unpack_tensor(real).grad_dtype() != leaves[i].scalar_type()) leave("grad_dtype of " + source->name());
    grads.push_back(c.attributes.load_attr(leaf, MAGNETO_STR("grad")));
    if (!takes_sum(c, leaves[i], grads.back().get())) leave("a gradient that another one can't be added to");
  }
  const auto known = static_cast<graph::ValueId>(c.graph.values.size());
  const bool retains = call->retain_graph == Py_None ? differentiable : call->retain_graph == Py_True;
  static constinit Imported gradients_of("magneto._forward", "gradients_of");
  PyObject* values[] = {roots.get(), ends.get(), call->gradients == Py_None ? Py_None : tangents.get(),
                        retains ? Py_True : Py_False, differentiable ? Py_True : Py_False};
  const EngineCall engine{from, leaves, call->gradients == Py_None ? variable_list() : tensors_in(tangents), retains,
                          differentiable};
  const bool code = calls_code(function, from, {});
  if (code && !fits(engine)) leave();
  const auto run = [&] {
    const bool before = c.session->set_in_general(true);
    PyObject* given =
        PyObject_CallFunctionObjArgs(gradients_of.get(), values[0], values[1], values[2], Py_True, values[4], nullptr);
    c.session->set_in_general(before);
    return given;
  };
  Ref results;
  try {
    results = code ? record_engine(gradients_of.get(), values, nullptr, engine)
                   : c.torch.record(graph::TorchNode::Kind::CallFunction, gradients_of.get(), values, nullptr, run);
  } catch (const PythonError&) {  // of the program, or of the engine on stand-ins
    PyErr_Clear();
    leave();
  }
  if (!retains) autograd::free_graph(from, leaves);
  // Where hooks of leaves have come since, CPython runs the segment.
  c.torch.last_guarded = static_cast<int32_t>(c.graph.aten_nodes.size()) - 1;
  const variable_list gradients = tensors_in(results);
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const bool is_own = c.session->value_of(gradients[i]) >= known && !is_shared(gradients, i);
    PyObject *const leaf = PyTuple_GET_ITEM(ends.get(), i), *const gradient = PyTuple_GET_ITEM(results.get(), i);
    if (!leaves[i].is_leaf()) {
      set_gradient(leaf, sum_of_retained(c, grads[i], gradient));
      continue;
    }
    differentiable ? accumulate_differentiable(leaf, grads[i], gradient) : accumulate(leaf, grads[i], gradient, is_own);
  }
  return Ref::borrow(Py_None);
}

namespace {

/// A copy, as AccumulateGrad lays it out for the leaf.
Ref copy_for(Capture& capture, PyObject* leaf, PyObject* gradient) {
  static constinit Imported empty("torch", "empty_like"), contiguous("torch", "contiguous_format");
  static PyObject* const format = checked(Py_BuildValue("(s)", "memory_format")).release();
  if (!unpack_tensor(leaf).is_non_overlapping_and_dense()) {
    return call_method(capture, "clone", {gradient, contiguous.get()}, format);
  }
  return call_method(capture, "copy_", {capture.torch.call_torch(empty.get(), {{leaf}}).get(), gradient});
}

}  // namespace

/// As AccumulateGrad does it. `is_own`: the gradient is nobody else's.
void Gradients::accumulate(PyObject* leaf, const Ref& grad, PyObject* gradient, bool is_own) {
  if (grad.get() != Py_None) {
    static constinit Imported set_enabled("torch._C", "_set_grad_enabled");
    const bool records = at::GradMode::is_enabled() && unpack_tensor(grad.get()).requires_grad();
    if (records) c.calls.call(set_enabled.get(), {Py_False});
    call_method(c, "add_", {grad.get(), gradient});
    if (records) c.calls.call(set_enabled.get(), {Py_True});
    return;
  }
  Ref kept = Ref::borrow(gradient);
  if (!is_own || !torch::autograd::utils::obeys_layout_contract(unpack_tensor(gradient), unpack_tensor(leaf))) {
    const at::AutoGradMode no_grad(false);
    kept = copy_for(c, leaf, gradient);
  }
  set_gradient(leaf, std::move(kept));
}

/// ...where autograd records it.
void Gradients::accumulate_differentiable(PyObject* leaf, const Ref& grad, PyObject* gradient) {
  set_gradient(leaf,
               grad.get() == Py_None ? copy_for(c, leaf, gradient) : call_method(c, "add", {grad.get(), gradient}));
}

void Gradients::set_gradient(PyObject* leaf, Ref gradient) {
  const bool differentiable = unpack_tensor(gradient.get()).requires_grad();
  if (c.tensors.is_input(leaf) && !differentiable) {
    c.attributes.store_attr(leaf, MAGNETO_STR("grad"), gradient.get());
    return;
  }
  // Of a leaf that is made inside, who reads it is told, and where the leaf is handed on, it is set.
  grads[c.session->value_of(unpack_tensor(leaf))] = std::move(gradient);
  if (c.tensors.is_input(leaf)) set_at_end(leaf);
}

}  // namespace magneto::capture
