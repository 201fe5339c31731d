#include "runtime/backward_run.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>

#include "fake/autograd_node.h"

namespace magneto::runtime {

namespace {

using autograd::BackwardRegion;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// What the nodes of one backward share.
struct Run {
  std::shared_ptr<const BackwardProgram> program;
  BackwardRegion region;
  BackwardCall call;
  std::vector<at::Tensor> results;

  void compute() {
    variable_list given = region.tensors();
    given.insert(given.end(), call.tangents.begin(), call.tangents.end());
    std::vector<const at::Tensor*> pointers;
    for (const at::Tensor& tensor : given) pointers.push_back(&tensor);
    region.release(call.keep_graph);
    call.tangents.clear();
    results.resize(program->computation->output_count());
    program->computation->compute(pointers.data(), results.data());
  }
};

/// Gives an end of the region its gradients, and lets the next of them go on: the engine calls leaves as soon as it
/// can, and so in the order in which they would come in eager.
class EndNode final : public Node {
 public:
  EndNode(std::shared_ptr<Run> run, size_t end, torch::autograd::edge_list&& edges)
      : Node(std::move(edges)), run_(std::move(run)), end_(end) {
    // The first one is given a tangent, because the engine must be given something.
    end == 0 ? add_input_metadata(run_->call.tangents.at(0)) : add_input_metadata(Node::undefined_input());
  }

  std::string name() const override { return "CompiledBackward"; }

 protected:
  variable_list apply(variable_list&& tangents) override {
    tangents.clear();
    if (end_ == 0) run_->compute();
    variable_list gradients;
    for (const int32_t place : run_->program->gradients[end_]) {
      if (place < 0) {
        gradients.emplace_back();
      } else {
        gradients.push_back(is_last(place) ? std::move(run_->results[place]) : run_->results[place]);
      }
    }
    gradients.resize(num_outputs());
    return gradients;
  }

 private:
  /// Nobody else gets that gradient, so that a leaf can keep its memory.
  bool is_last(int32_t place) const {
    const auto& all = run_->program->gradients;
    size_t uses = 0;
    for (size_t end = end_; end < all.size(); ++end) uses += std::ranges::count(all[end], place);
    return uses == 1;
  }

  std::shared_ptr<Run> run_;
  size_t end_;
};

}  // namespace

variable_list run_backward(std::shared_ptr<const BackwardProgram> program, BackwardRegion region, BackwardCall call) {
  const auto run = std::make_shared<Run>(std::move(program), std::move(region), std::move(call));
  const std::vector<BackwardRegion::Step>& steps = run->region.steps();
  std::vector<const BackwardRegion::Step*> ends;
  for (const BackwardRegion::Step& step : steps) {
    if (step.role == BackwardRegion::Role::End) ends.push_back(&step);
  }
  Edge next;
  for (size_t end = ends.size(); end-- > 0;) {
    torch::autograd::edge_list edges;
    for (const uint32_t input : ends[end]->given) edges.emplace_back(ends[end]->node, input);
    edges.push_back(std::move(next));
    next = Edge(make_autograd_node<EndNode>(run, end, std::move(edges)), 0);
  }
  const variable_list first = {run->call.tangents.at(0)};
  return torch::autograd::Engine::get_default_engine().execute({next}, first, run->call.keep_graph,
                                                               /*create_graph=*/false, run->call.accumulate,
                                                               run->call.asked);
}

}  // namespace magneto::runtime
