#include "autograd/backward_capture.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>

#include "autograd/compiled_node.h"
#include "autograd/engine.h"
#include "autograd/kept_gradients.h"
#include "autograd/node_fields.h"
#include "graph/aliases.h"
#include "graph/operator_run.h"
#include "graph/symbols.h"

namespace magneto::autograd {

namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Step = BackwardRegion::Step;
using Role = BackwardRegion::Role;

struct Refused {
  std::string why;
};

/// While it lives, a node's saved tensors are others.
class Swapped final : public FieldVisitor {
 public:
  Swapped(Node& node, const at::Tensor* others) : node_(node), next_(others) { visit_fields(node_, *this); }
  ~Swapped() override {
    restores_ = true;
    at_ = 0;
    visit_fields(node_, *this);
  }
  Swapped(const Swapped&) = delete;

  void tensor(SavedVariable& saved) override {
    if (restores_) {
      if (at_ < kept_.size()) saved = std::move(kept_[at_++]);
      return;
    }
    const auto raw = saved.get_raw_data();
    const bool defined = raw && raw->defined();
    kept_.push_back(std::move(saved));
    saved = defined ? SavedVariable(*next_++, /*is_output=*/false) : SavedVariable();
  }
  void number(int64_t) override {}

 private:
  Node& node_;
  const at::Tensor* next_;
  std::vector<SavedVariable> kept_;
  size_t at_ = 0;
  bool restores_ = false;
};

class BackwardCapture {
 public:
  BackwardCapture(const BackwardPiece& piece, fake::Session& session, CapturedBackward& made)
      : piece_(piece), steps_(piece.region().steps()), session_(session), made_(made), gradients_(steps_.size()) {}

  void run() {
    for (const at::Tensor& tensor : piece_.tensors()) saved_.push_back(make_input(tensor, "saved_", saved_.size()));
    for (size_t i = 0; i < piece_.taken().size(); ++i) {
      add(piece_.taken()[i], make_input(piece_.tangents()[i], "tangents_", i));
    }
    const EngineScope scope(session_);
    const c10::AutoGradMode no_grad(false);
    for (size_t i = piece_.first(); i < piece_.end(); ++i) {
      if (steps_[i].role == Role::Inside) run(steps_[i], i);
    }
    for (size_t i = piece_.first(); i < steps_.size(); ++i) give(i);
  }

 private:
  at::Tensor make_input(const at::Tensor& real, const char* name, size_t number) {
    return session_.make_input(real, name + std::to_string(number + 1));
  }

  /// As the engine does.
  void add(const BackwardRegion::Target& to, const at::Tensor& gradient) {
    if (to.step < 0 || !gradient.defined()) return;
    variable_list& inputs = gradients_[to.step];
    inputs.resize(steps_[to.step].node->num_inputs());
    at::Tensor& sum = inputs.at(to.input);
    sum = sum.defined() ? at::add(sum, gradient) : gradient;
  }

  void run(const Step& step, size_t i) {
    Node& node = *step.node;
    variable_list inputs = std::move(gradients_[i]);
    inputs.resize(node.num_inputs());
    const at::Tensor* saved = saved_.data() + piece_.first_tensor(i);
    auto* compiled = dynamic_cast<CompiledNode*>(&node);
    variable_list outputs = compiled ? run_compiled(*compiled, saved, inputs) : call(node, saved, std::move(inputs));
    if (session_.refused()) throw Refused{};
    torch::autograd::validate_outputs(node.next_edges(), outputs, [&](const std::string& what) {
      return "Function " + node.name() + " returned an " + what;
    });
    for (size_t edge = 0; edge < outputs.size(); ++edge) add(step.next.at(edge), outputs[edge]);
  }

  static variable_list call(Node& node, const at::Tensor* saved, variable_list&& inputs) {
    const Swapped swapped(node, saved);
    return node(std::move(inputs));
  }

  /// Its graph, operator by operator, for the sizes of this run.
  variable_list run_compiled(CompiledNode& node, const at::Tensor* saved, const variable_list& tangents) {
    const Backward& backward = node.backward();
    std::vector<at::Tensor> given(saved, saved + backward.saved.size());
    for (size_t i = 0; i < tangents.size(); ++i) {
      given.push_back(tangents[i].defined() ? tangents[i] : node.input_metadata(i).zeros_like());
    }
    std::vector<const at::Tensor*> pointers;
    for (const at::Tensor& tensor : given) pointers.push_back(&tensor);
    const graph::SymbolReader symbols(backward.graph);
    const graph::Graph graph =
        symbols.empty() ? backward.graph : graph::with_numbers(backward.graph, symbols.read(pointers.data()));
    for (size_t i = backward.saved.size(); i < given.size(); ++i) fit(given[i], graph.values[graph.inputs[i]].meta);
    graph::OperatorRun operators(graph, [&](const at::Tensor& constant) { return session_.make_constant(constant); });
    const std::vector<at::Tensor> results = operators.run(given);
    variable_list gradients;
    for (const Backward::Leaf& leaf : backward.leaves) {
      bool reached = leaf.gradient >= 0, from_tangent = false;
      for (size_t i = 0; i < tangents.size(); ++i) from_tangent |= tangents[i].defined() && leaf.reached_from[i];
      gradients.push_back(reached && from_tangent ? results[leaf.gradient] : at::Tensor());
    }
    return gradients;
  }

  static void fit(at::Tensor& tangent, const graph::TensorMeta& meta) {
    if (tangent.strides() == c10::IntArrayRef(meta.strides)) return;
    const at::TensorOptions options = at::TensorOptions(meta.dtype).device(meta.device);
    tangent = at::empty_strided(meta.sizes, meta.strides, options).copy_(tangent);
  }

  void give(size_t i) {
    for (uint32_t input = 0; input < gradients_[i].size(); ++input) {
      const at::Tensor& gradient = gradients_[i][input];
      if (!gradient.defined()) continue;
      const graph::ValueId id = session_.value_of(gradient);
      if (id == graph::kNoValue) throw Refused{"a gradient that is of a class of tensors"};
      std::vector<graph::ValueId>& outputs = made_.graph.outputs;
      const auto known = std::ranges::find(outputs, id);
      const auto output = static_cast<int32_t>(known - outputs.begin());
      made_.gradients.push_back({static_cast<int32_t>(i - piece_.first()), input, output});
      if (known == outputs.end()) outputs.push_back(id);
    }
  }

  const BackwardPiece& piece_;
  const std::vector<Step>& steps_;
  fake::Session& session_;
  CapturedBackward& made_;
  std::vector<variable_list> gradients_;  // by step
  std::vector<at::Tensor> saved_;
};

bool writes_inputs(const graph::Graph& graph) {
  const graph::Aliases aliases(graph);
  return std::ranges::any_of(graph.inputs, [&](graph::ValueId id) { return aliases.written(id); });
}

}  // namespace

CapturedBackward capture_backward(const BackwardPiece& piece) {
  CapturedBackward made;
  const auto refuse = [&](std::string why) {
    made.refusal = std::move(why);
    return std::move(made);
  };
  {
    fake::Session session(made.graph);
    try {
      BackwardCapture(piece, session, made).run();
    } catch (const Refused& refused) {
      if (const auto refusal = session.take_refusal()) return refuse(refusal->op + ": " + refusal->message);
      return refuse(refused.why);
    } catch (const std::exception& error) {
      if (const auto refusal = session.take_refusal()) return refuse(refusal->op + ": " + refusal->message);
      PyErr_Clear();
      const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
      return refuse(of_torch ? of_torch->what_without_backtrace() : error.what());
    }
    if (!session.read_inputs().empty()) return refuse("a formula that reads data");
  }
  separate_gradients(made.graph);
  if (writes_inputs(made.graph)) return refuse("a formula that writes what was saved");
  return made;
}

}  // namespace magneto::autograd
