// What a finished capture says of gradients: whether its results have any, and the backward that computes them.
#include "capture/torch/gradients.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "autograd/distributed_gradients.h"
#include "autograd/joint.h"
#include "autograd/nodes.h"
#include "capture/calls/deferred.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/exits/rebuild.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/torch/tensor_map.h"
#include "graph/aliases.h"
#include "observe/times.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// The segment gives the input another history: it is written in place where autograd records. (Under no_grad it is
/// written as well, by an optimizer, and stays the leaf that it was.)
bool has_new_history(const at::Tensor& fake) {
  const auto& history = fake.grad_fn();
  return history && !autograd::is_history(*history);
}

/// It calls torch.autograd.grad or backward(), whose operators are in the graph; the hooks that they may call are not.
bool takes_gradients(const graph::Graph& graph) {
  static constinit Imported grad("torch.autograd", "grad"), backward("magneto._forward", "gradients_of");
  return std::ranges::any_of(graph.torch_nodes, [](const graph::TorchNode& node) {
    return node.target.get() == grad.get() || node.target.get() == backward.get();
  });
}

/// `p.grad = None`, as zero_grad() says it, and `p.grad = g`: each run does it at the segment's end, behind all other
/// writes. Whatever asks for the attribute in the segment is told.
Ref set_grad_function() {
  static PyMethodDef definition = {"set_grad",
                                   [](PyObject*, PyObject* args) -> PyObject* {
                                     PyObject *of = PyTuple_GET_ITEM(args, 0), *grad = PyTuple_GET_ITEM(args, 1);
                                     if (PyObject_SetAttrString(of, "grad", grad) < 0) return nullptr;
                                     Py_RETURN_NONE;
                                   },
                                   METH_VARARGS, nullptr};
  static PyObject* const function = PyCFunction_New(&definition, nullptr);
  return Ref::borrow(function);
}

}  // namespace

void Gradients::set_at_end(PyObject* tensor) {
  constexpr int64_t any = DeferredCall::kAnyVersion;
  const Ref& set = grads.at(c.session->value_of(unpack_tensor(tensor)));
  // One with a history is a result only where it stays.
  std::erase_if(c.deferred.calls, [&](const DeferredCall& call) {
    const bool of_it = call.function.get() == set_grad_function().get() && call.args[0].get() == tensor;
    return of_it && is_tensor(call.args[1].get()) && unpack_tensor(call.args[1].get()).requires_grad();
  });
  c.deferred.calls.push_back({set_grad_function(), {Ref::borrow(tensor), set}, {any, any}});
}

/// Why no joint graph is to be had, where that shows before the engine is asked; empty: nothing is in the way.
std::string Gradients::why_no_joint() {
  if (c.options.partition.whole && !c.graph.symbols_of(graph::ValueKind::Result).empty()) {
    return "sizes or numbers that depend on data";  // whoever cuts the graph knows no such symbols
  }
  // A backward reads a leaf that autograd has saved with the data that it then has. Only autograd knows which it saves
  // itself. (What the segment's own backward needed is freed.)
  if (!takes_gradients(c.graph) && reads_set_data(0)) return "the data of an input is set";
  const fake::Session::Mark now = c.session->mark();
  size_t changes = now.as_views;
  for (const graph::AtenNode& node : c.graph.aten_nodes) {
    if (!graph::changes_metadata(node.op)) continue;
    const bool of_result = c.graph.values[std::get<graph::ValueId>(node.args[0])].kind == graph::ValueKind::Result;
    if (!of_result) return "an in-place operator changes the sizes of an input";
    ++changes;
  }
  if (now.metadata_changes > changes) return "an operator resizes a tensor";  // as `out=` of another size
  for (const auto& [id, input] : c.tensors.inputs) {
    const at::Tensor& fake = c.exits.rebuilder->tensor_of(c.tensors.fake_of.at(input.real.get()).get());
    const at::Tensor& real = c.exits.rebuilder->tensor_of(input.real.get());
    if (has_new_history(fake)) {
      if (real.is_view()) return "an input that is a view is written in place";
    } else if (fake.requires_grad() != real.requires_grad()) {
      return "requires_grad of an input is changed";
    }
  }
  for (const at::Tensor& output : c.exits.rebuilder->outputs()) {
    if (!output.defined()) return "one value is handed out with and without a gradient";
  }
  return {};
}

bool Gradients::needs_grad() {
  check_read_data();
  if (c.exits.rebuilder->needs_grad()) return true;
  for (const auto& [id, input] : c.tensors.inputs) {
    const at::Tensor& fake = c.exits.rebuilder->tensor_of(c.tensors.fake_of.at(input.real.get()).get());
    const at::Tensor& real = c.exits.rebuilder->tensor_of(input.real.get());
    if (fake.requires_grad() != real.requires_grad() || has_new_history(fake)) return true;
  }
  return takes_gradients(c.graph);
}

std::optional<autograd::JointTrace> Gradients::trace_backward(std::string* no_joint) {
  const runtime::StageTime time("compile.capture.joint_graph");
  std::optional<autograd::JointTrace> joint = trace_joint(no_joint);
  if (!joint && !classes_.empty()) retry_without_classes(*no_joint);
  return joint;
}

std::optional<autograd::JointTrace> Gradients::trace_joint(std::string* no_joint) {
  *no_joint = why_no_joint();
  if (!no_joint->empty()) return {};
  // What the backward adds to the graph is taken out again: inputs that are still missing come first.
  for (const auto& symbol : c.symbols.assumed.symbols) {
    if (symbol.place.kind == guards::SizePlace::Kind::Number) {
      c.numbers.beside_tensor(c.numbers.unknown_numbers.at(symbol.place.source).get());
    }
  }
  constexpr int kAttempts = 3;  // an answer that is checked may lead to another question
  for (int i = 0; i < kAttempts; ++i) {
    std::optional<autograd::JointTrace> joint = run_backward(no_joint);
    if (!c.session->has_checks()) return joint;
    // What it asked of sizes that only the data says is checked in each run, by the forward.
    if (joint) joint->discard();
    c.symbols.flush_checks();
    if (!joint) return {};
  }
  *no_joint = "its backward asks for sizes that depend on data";
  return {};
}

std::optional<autograd::JointTrace> Gradients::run_backward(std::string* no_joint) {
  std::vector<graph::ValueId> leaves;
  torch::autograd::edge_list leaf_edges;
  std::vector<at::Tensor> inputs;
  std::vector<autograd::Results::Written> written;
  std::vector<std::pair<graph::ValueId, at::Tensor>> distributed;
  for (const graph::ValueId id : c.graph.inputs) {
    const at::Tensor& real = c.exits.rebuilder->tensor_of(c.tensors.inputs.at(id).real.get());
    inputs.push_back(c.exits.rebuilder->tensor_of(c.tensors.fake_of.at(c.tensors.inputs.at(id).real.get()).get()));
    if (real.requires_grad()) {
      leaves.push_back(id);
      leaf_edges.push_back(c.session->history_of(id, inputs.back()));
      if (autograd::is_dtensor(inputs.back())) distributed.emplace_back(id, inputs.back());
    }
    if (has_new_history(inputs.back())) written.push_back({id, inputs.back()});
  }
  auto results = autograd::results_of(c.graph, c.exits.rebuilder->outputs(), inputs,
                                      [&](const at::Tensor& tensor) { return c.session->value_of(tensor); });
  if (!results) {
    *no_joint = "a result shares the memory of an input or another result";
    return {};
  }
  results->written = std::move(written);
  results->with_hooks = takes_gradients(c.graph);
  for (const graph::ValueId id : results->with_hooks ? leaves : std::vector<graph::ValueId>()) {
    if (c.exits.rebuilder->tensor_of(c.tensors.inputs.at(id).real.get()).is_leaf()) results->leaves.push_back(id);
  }
  results->hooked = hooked;
  results->frees = results->with_hooks && !frees_unseen_;
  results->of_classes = !classes_.empty();
  results->distributed = std::move(distributed);
  const auto why_not = [&](PyObject* context) -> std::string {
    if (autograd::belongs_to_operator(context)) return {};
    if (rehearsed_.contains(context)) return {};
    PyObject* function = autograd::function_of(context);
    const std::string why = function ? why_opaque(function) : std::string();
    return why.empty() ? "its call was not interpreted" : why;
  };
  if (c.options.partition.whole && c.graph.outputs.size() > 1 && !hooked.empty()) {
    break_at_hook(*hooked.begin(), "a compiler of the program's own is given one backward of several results");
  }
  for (size_t i = 0; i < c.graph.outputs.size(); ++i) {
    if (!results->outputs[i].views.empty()) break_at_hook(c.graph.outputs[i], "it is on a view that the segment gives");
  }
  std::optional<autograd::JointTrace> joint;
  autograd::NoJoint refusal;
  const auto run = [&] {
    joint = autograd::JointTrace::run(*c.session, c.graph, *std::move(results), leaves, leaf_edges,
                                      c.options.partition.whole, why_not, &refusal);
    *no_joint = refusal.why;
  };
  const auto is_about_hooks = [&] { return !joint && no_joint->starts_with("a hook on a gradient"); };
  if (rehearsed_.empty() && classes_.empty() && hooks.empty() &&
      saved_hooks_.empty()) {  // else code of the program runs as well
    const bool before = c.session->set_in_general(true);
    run();
    c.session->set_in_general(before);
    if (refusal.numbers && read_for_backward(*refusal.numbers)) return run_backward(no_joint);
    if (refusal.hooked != graph::kNoValue && hand_on_beside_hooks()) return run_backward(no_joint);
    break_at_hook(refusal.hooked, *no_joint);
    return joint;
  }
  const size_t known = c.tensors.inputs.size();
  std::string why = interpret_backwards(run);
  if (why.empty() && refusal.numbers && read_for_backward(*refusal.numbers)) return run_backward(no_joint);
  if (refusal.hooked != graph::kNoValue && hand_on_beside_hooks()) return run_backward(no_joint);
  break_at_hook(refusal.hooked, *no_joint);
  if (c.tensors.inputs.size() != known) why = "it reads other tensors at the segment's end";
  if (!why.empty() && !classes_.empty()) retry_without_classes(why);
  if (!why.empty() && !saved_hooks_.empty()) break_at_saved_hooks(why);
  if (why.empty() && !hooks.empty() && is_about_hooks()) retry_without(hooks.front().first.get(), *no_joint);
  if (!why.empty()) {
    retry_without(rehearsed_.empty() ? hooks.front().first.get() : autograd::function_of(*rehearsed_.begin()),
                  std::move(why));
  }
  return joint;
}

}  // namespace magneto::capture
