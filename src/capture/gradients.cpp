// What a finished capture says of gradients: whether its results have any, and the backward that computes them.
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "autograd/joint.h"
#include "capture/capture.h"
#include "capture/rebuild.h"
#include "python/imported.h"

namespace magneto::capture {

namespace {

const c10::StorageImpl* memory_of(const at::Tensor& fake) {
  return fake.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

/// The segment gives the input another history: it is written in place where autograd looks on. (Under no_grad it is
/// written as well, by an optimizer, and stays the leaf that it was.)
bool has_new_history(const at::Tensor& fake) {
  const auto& history = fake.grad_fn();
  return history && !dynamic_cast<torch::autograd::Error*>(history.get());
}

}  // namespace

/// Why no joint graph is to be had, where that shows before the engine is asked; empty: nothing is in the way.
std::string Capture::why_no_joint() {
  static constinit Imported take_gradients("torch.autograd", "grad");
  for (const graph::TorchNode& node : graph.torch_nodes) {
    if (node.target.get() == take_gradients.get()) return "gradients are taken inside (torch.autograd.grad)";
  }
  if (!graph.symbols_of(graph::ValueKind::Result).empty()) return "sizes or numbers that depend on data";
  if (session->mark().metadata_changes > 0) return "an in-place operator changes the sizes of a tensor";
  std::vector<const c10::StorageImpl*> taken;
  for (const auto& [id, input] : inputs_) {
    const at::Tensor& fake = rebuilder_->tensor_of(fake_of_.at(input.real.get()).get());
    const at::Tensor& real = rebuilder_->tensor_of(input.real.get());
    if (fake.requires_grad() != real.requires_grad()) return "requires_grad of an input is changed";
    if (has_new_history(fake)) return "an input that requires gradients is written in place";
    taken.push_back(memory_of(fake));
  }
  for (const at::Tensor& output : rebuilder_->outputs()) {
    if (!output.defined()) return "one value is handed out with and without a gradient";
    // Below autograd a view would not know that it is one.
    if (std::ranges::count(taken, memory_of(output))) return "a result shares the memory of an input or another result";
    taken.push_back(memory_of(output));
  }
  return {};
}

bool Capture::needs_grad() {
  static constinit Imported take_gradients("torch.autograd", "grad");
  if (rebuilder_->needs_grad()) return true;
  for (const auto& [id, input] : inputs_) {
    const at::Tensor& fake = rebuilder_->tensor_of(fake_of_.at(input.real.get()).get());
    const at::Tensor& real = rebuilder_->tensor_of(input.real.get());
    if (fake.requires_grad() != real.requires_grad() || has_new_history(fake)) return true;
  }
  // Gradients taken inside: by autograd itself, with all hooks that it has.
  return std::ranges::any_of(graph.torch_nodes,
                             [](const graph::TorchNode& node) { return node.target.get() == take_gradients.get(); });
}

std::optional<autograd::JointTrace> Capture::trace_backward(std::string* no_joint) {
  *no_joint = why_no_joint();
  if (!no_joint->empty()) return {};
  // Of the forward: what the backward adds to the graph is taken out again.
  for (const auto& symbol : sizes_.symbols) {
    if (symbol.place.kind == guards::SizePlace::Kind::Number)
      beside_tensor(unknown_numbers_.at(symbol.place.source).get());
  }
  std::vector<autograd::JointTrace::Root> roots;
  const std::vector<at::Tensor>& outputs = rebuilder_->outputs();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].requires_grad()) roots.push_back({i, outputs[i]});
  }
  std::vector<autograd::JointTrace::Leaf> leaves;
  for (const graph::ValueId id : graph.inputs) {
    const at::Tensor& fake = rebuilder_->tensor_of(fake_of_.at(inputs_.at(id).real.get()).get());
    if (fake.requires_grad()) leaves.push_back({id, fake});
  }
  return autograd::JointTrace::run(*session, graph, roots, leaves, no_joint);
}

}  // namespace magneto::capture
