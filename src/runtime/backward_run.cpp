#include "runtime/backward_run.h"

#include <ATen/ops/add.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <optional>

#include "fake/autograd_node.h"

namespace magneto::runtime {

namespace {

using autograd::Arrived;
using autograd::BackwardPiece;
using autograd::BackwardRegion;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Role = BackwardRegion::Role;
using Step = BackwardRegion::Step;

/// As the engine adds what arrives at one place.
void add(const BackwardRegion& region, Arrived& arrived, const BackwardRegion::Target& to, const at::Tensor& gradient) {
  if (to.step < 0 || !gradient.defined()) return;
  variable_list& inputs = arrived[to.step];
  inputs.resize(region.steps()[to.step].node->num_inputs());
  at::Tensor& sum = inputs.at(to.input);
  const bool adds = sum.defined();
  sum = !adds ? gradient : sum.is_sparse() ? at::add(gradient, sum) : at::add(sum, gradient);
}

/// What the nodes of one backward share.
class Run {
 public:
  Run(BackwardRegion region, BackwardCall call)
      : region_(std::move(region)), call_(std::move(call)), arrived_(arrive(region_, call_.tangents)) {}

  const BackwardRegion& region() const { return region_; }
  const BackwardCall& call() const { return call_; }

  /// All steps before `step`, as far as they were not yet done.
  void advance(size_t step) {
    if (next_ == 0) watch();
    for (; next_ < step; ++next_) {
      if (next_ >= decided_) compute_piece();
      const Role role = region_.steps()[next_].role;
      if (role == Role::Called || (role == Role::Inside && next_ >= computed_)) call_node(next_);
    }
  }

  variable_list take(size_t step) { return std::move(arrived_[step]); }

 private:
  /// Hooks may ask which nodes this backward comes to.
  void watch() {
    call_.tangents.clear();
    auto* nodes = const_cast<std::unordered_set<Node*>*>(torch::autograd::get_current_graph_task_nodes_in_graph());
    for (const Step& step : region_.steps()) nodes->insert(step.node.get());
  }

  void compute_piece() {
    std::optional<BackwardPiece> piece;
    try {
      piece.emplace(region_, next_, arrived_);
    } catch (const c10::Error&) {
      // What is saved is not what it was, or is freed: its node says so, when those before it have run.
      decided_ = region_.piece_end(next_);
      return;
    }
    decided_ = std::max(piece->end(), next_ + 1);
    const auto program = piece->empty() ? nullptr : call_.program_of(*piece);
    if (!program) return;
    variable_list given = piece->tensors();
    given.insert(given.end(), piece->tangents().begin(), piece->tangents().end());
    for (const size_t number : program->numbers)
      given.push_back(at::scalar_tensor(piece->numbers()[number], at::kLong));
    std::vector<const at::Tensor*> pointers;
    for (const at::Tensor& tensor : given) pointers.push_back(&tensor);
    for (const BackwardRegion::Target& place : piece->taken()) arrived_[place.step][place.input].reset();
    piece->release(call_.keep_graph);
    std::vector<at::Tensor> results(program->computation->output_count());
    program->computation->compute(pointers.data(), results.data());
    for (const autograd::PieceGradient& one : program->gradients) {
      const size_t to = piece->first() + one.step;
      arrived_[to].resize(region_.steps()[to].node->num_inputs());
      arrived_[to][one.input] = results[one.output];
    }
    computed_ = piece->end();
  }

  /// As the engine does.
  void call_node(size_t i) {
    const Step& step = region_.steps()[i];
    Node& node = *step.node;
    variable_list inputs = take(i);
    inputs.resize(node.num_inputs());
    for (const auto& hook : node.tensor_pre_hooks()) inputs = (*hook)(inputs);
    for (const auto& [output, hook] : node.retains_grad_hooks()) inputs = (*hook)(inputs);
    for (const auto& hook : node.pre_hooks()) inputs = (*hook)(inputs);
    if (!call_.keep_graph) node.will_release_variables();
    const bool watched = !node.post_hooks().empty();
    variable_list outputs = node(watched ? variable_list(inputs) : std::move(inputs));
    torch::autograd::validate_outputs(node.next_edges(), outputs, [&](const std::string& what) {
      return "Function " + node.name() + " returned an " + what;
    });
    for (const auto& hook : node.post_hooks()) outputs = (*hook)(outputs, inputs);
    if (!call_.keep_graph) node.release_variables();
    for (size_t edge = 0; edge < step.next.size() && edge < outputs.size(); ++edge) {
      add(region_, arrived_, step.next[edge], outputs[edge]);
    }
  }

  BackwardRegion region_;
  BackwardCall call_;
  Arrived arrived_;
  /// Steps before these are done; their piece is known to be computed or called; were computed.
  size_t next_ = 0, decided_ = 0, computed_ = 0;
};

/// Gives an end of the region its gradients, and lets the next of them go on: the engine calls leaves as soon as it
/// can, and so in the order in which they would come in eager. The last one has no end.
class EndNode final : public Node {
 public:
  EndNode(std::shared_ptr<Run> run, size_t step, bool is_first, torch::autograd::edge_list&& edges)
      : Node(std::move(edges)), run_(std::move(run)), step_(step) {
    // The first one is given a tangent, because the engine must be given something.
    is_first ? add_input_metadata(run_->call().tangents.at(0)) : add_input_metadata(Node::undefined_input());
  }

  std::string name() const override { return "CompiledBackward"; }

 protected:
  variable_list apply(variable_list&& tangents) override {
    tangents.clear();
    run_->advance(step_);
    variable_list gradients;
    if (step_ < run_->region().steps().size()) {
      variable_list arrived = run_->take(step_);
      for (const uint32_t input : run_->region().steps()[step_].given) {
        gradients.push_back(input < arrived.size() ? std::move(arrived[input]) : at::Tensor());
      }
    }
    gradients.resize(num_outputs());
    return gradients;
  }

 private:
  std::shared_ptr<Run> run_;
  size_t step_;
};

}  // namespace

Arrived arrive(const BackwardRegion& region, const variable_list& tangents) {
  Arrived arrived(region.steps().size());
  for (size_t i = 0; i < tangents.size(); ++i) add(region, arrived, region.roots()[i], tangents[i]);
  return arrived;
}

variable_list run_backward(BackwardRegion region, BackwardCall call) {
  const auto run = std::make_shared<Run>(std::move(region), std::move(call));
  const std::vector<Step>& steps = run->region().steps();
  std::vector<size_t> ends;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].role == Role::End) ends.push_back(i);
  }
  if (run->call().asked.empty()) ends.push_back(steps.size());
  Edge next;
  for (size_t end = ends.size(); end-- > 0;) {
    torch::autograd::edge_list edges;
    if (ends[end] < steps.size()) {
      for (const uint32_t input : steps[ends[end]].given) edges.emplace_back(steps[ends[end]].node, input);
    }
    edges.push_back(std::move(next));
    next = Edge(make_autograd_node<EndNode>(run, ends[end], end == 0, std::move(edges)), 0);
  }
  const variable_list first = {run->call().tangents.at(0)};
  const BackwardCall& of = run->call();
  return torch::autograd::Engine::get_default_engine().execute({next}, first, of.keep_graph, /*create_graph=*/false,
                                                               of.accumulate, of.asked);
}

}  // namespace magneto::runtime
