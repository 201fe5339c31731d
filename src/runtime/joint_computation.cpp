#include "runtime/joint_computation.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>

#include "autograd/compiled_node.h"
#include "autograd/node_types.h"
#include "autograd/nodes.h"
#include "autograd/root_node.h"
#include "autograd/stopped_nodes.h"
#include "fake/autograd_node.h"
#include "graph/aliases.h"
#include "runtime/autocast_scope.h"
#include "runtime/backward_inside.h"
#include "runtime/device/memory_pool.h"
#include "runtime/freed_results.h"
#include "runtime/gradient_chain.h"
#include "runtime/jagged_results.h"
#include "runtime/no_further_gradients.h"
#include "runtime/partial_gradients.h"
#include "runtime/plan/saved_state.h"
#include "runtime/plan/torch_errors.h"
#include "runtime/result_views.h"
#include "support/gil.h"

namespace magneto::runtime {

namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// What computes some of the gradients alone, from the second time on that no others are asked for (`inputs=`, or a
/// loss that few of the results lead to).
struct Part {
  std::vector<bool> asked;  // by leaf
  std::shared_ptr<const TensorComputation> computation;
  std::vector<int32_t> gradients;  // by leaf: positions among its outputs
};
constexpr size_t kMostParts = 4;

/// One backward of a joint computation.
struct BackwardProgram {
  autograd::Backward ties;
  std::unique_ptr<TensorComputation> computation;
  /// Among the forward's inputs, or its results.
  struct Place {
    bool input;
    size_t index;
    PyObject* placements = nullptr;  // as in Backward::Leaf
  };
  std::vector<Place> saved, leaves;
  std::vector<graph::TensorMeta> tangents;  // by root
  graph::SymbolReader symbols;              // of its geometry
  GradientParts parts;

  BackwardProgram(autograd::Backward backward, std::unique_ptr<TensorComputation> made)
      : ties(std::move(backward)), computation(std::move(made)), symbols(ties.graph), parts(ties, *computation) {}

  /// The gradients that are asked for, by leaf. Drops what is given where nobody else holds it.
  variable_list compute(variable_list&& given, const std::vector<bool>& asked, const Specialise& prune) const {
    std::shared_ptr<const Part> part;
    const auto left_out = [&](size_t leaf) { return !asked[leaf] && ties.leaves[leaf].gradient >= 0; };
    bool all = true;
    for (size_t leaf = 0; leaf < asked.size(); ++leaf) all &= !left_out(leaf);
    if (!all && prune) with_python([&] { part = part_of(asked, prune); });
    const TensorComputation& computes = part ? *part->computation : *computation;
    std::vector<at::Tensor> results(computes.output_count());
    computes.consume(given, results.data());
    variable_list gradients;
    for (size_t leaf = 0; leaf < asked.size(); ++leaf) {
      const int32_t at = part ? part->gradients[leaf] : ties.leaves[leaf].gradient;
      gradients.push_back(asked[leaf] ? results[at] : at::Tensor());
    }
    return gradients;
  }

 private:
  /// Null: it is the first time, or there are too many such. Under the GIL.
  std::shared_ptr<const Part> part_of(const std::vector<bool>& asked, const Specialise& prune) const {
    const auto known = std::ranges::find(parts_, asked, [](const auto& part) { return part->asked; });
    if (known == parts_.end()) {
      if (parts_.size() < kMostParts) parts_.push_back(std::make_shared<Part>(Part{.asked = asked}));
      return nullptr;
    }
    if ((*known)->computation) return *known;
    auto made = std::make_shared<Part>(Part{.asked = asked});
    graph::Graph graph = ties.graph;
    graph.outputs.clear();
    for (size_t leaf = 0; leaf < asked.size(); ++leaf) {
      made->gradients.push_back(-1);
      if (!asked[leaf]) continue;
      const graph::ValueId id = ties.graph.outputs[ties.leaves[leaf].gradient];
      const auto output = std::ranges::find(graph.outputs, id);
      made->gradients.back() = static_cast<int32_t>(output - graph.outputs.begin());
      if (output == graph.outputs.end()) graph.outputs.push_back(id);
    }
    if (graph.outputs.empty()) return nullptr;
    made->computation = prune(graph);
    *known = made;
    return made;
  }

  mutable std::vector<std::shared_ptr<const Part>> parts_;
};

/// What all runs of one joint computation share.
struct Program {
  Program(const graph::Graph& graph, const autograd::Results& results) : results(results), views(graph, results) {}

  std::unique_ptr<TensorComputation> forward;
  std::vector<BackwardProgram> backwards;
  std::unique_ptr<Computation> torch_level;
  Specialise prune;
  autograd::Results results;
  ResultViews views;
  std::vector<at::Generator> generators;  // drawn from
  // Positions among the inputs.
  std::vector<size_t> written;
  std::vector<size_t> written_roots;  // with history: Results::written
  BackwardInside inside;
  std::vector<FreedRoot> freed;
  graph::Undo undo;
};

at::Tensor copy(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
}

/// One run of a joint computation, as autograd sees it.
class GradientNode final : public autograd::CompiledNode {
 public:
  GradientNode(std::shared_ptr<const Program> program, const BackwardProgram& backward, GradientChain&& chain)
      : CompiledNode(std::move(chain.first)),
        program_(std::move(program)),
        backward_(backward),
        behind_(std::move(chain.nodes)),
        hooks_(backward.ties.inside.empty() ? nullptr : std::make_shared<autograd::RootHooks>()) {}

  std::string name() const override { return "CompiledFunctionBackward"; }

  /// Once the outputs belong to this node. `originals`: what the written inputs were before they were written.
  void save(const std::vector<const at::Tensor*>& inputs, const std::vector<at::Tensor>& originals,
            const at::Tensor* results) {
    const size_t checked = backward_.saved.size() - backward_.ties.reread;
    saved_.reserve(checked);
    for (size_t i = 0; i < checked; ++i) {
      const BackwardProgram::Place& saved = backward_.saved[i];
      const bool output = saved.input ? std::ranges::count(program_->written_roots, saved.index) > 0
                                      : saved.index < program_->results.computed.size();
      saved_.emplace_back(saved.input ? *inputs[saved.index] : results[saved.index], /*is_output=*/output);
    }
    for (size_t i = checked; i < backward_.saved.size(); ++i) {
      reread_.push_back(inputs[backward_.saved[i].index]->detach());
    }
    for (const at::Tensor* input : inputs) inputs_.push_back(*input);
    for (size_t i = 0; i < originals.size(); ++i) inputs_[program_->written[i]] = originals[i];
    for (const at::Tensor& input : inputs_) versions_.push_back(input.is_inference() ? 0 : input._version());
    pending_.emplace();
  }
  const std::shared_ptr<autograd::RootHooks>& hooks() const { return hooks_; }
  void keep_random_state(const std::vector<at::Tensor>& states) { random_states_ = states; }

  std::string why_apart() const override {
    if (backward_.computation->is_users()) return "a backward that a compiler of the program's has made";
    if (program_->results.with_none) return "a custom autograd.Function that takes None for gradients";
    const bool has_regions = std::ranges::any_of(backward_.ties.graph.aten_nodes, graph::has_regions);
    return has_regions ? "an operator that runs graphs (cond, scan, while_loop)" : "";
  }
  bool is_cut() const override { return !behind_.empty(); }
  const autograd::Backward& backward() const override { return backward_.ties; }
  std::shared_ptr<const void> owner() const override { return program_; }
  variable_list saved_tensors() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return unpack();
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    release();
  }

 protected:
  variable_list apply(variable_list&& tangents) override {
    const std::vector<bool> defined = defined_of(tangents);
    if (hooks_) refuse_hooks(*hooks_, backward_.ties, defined);
    const bool none = program_->results.with_none && std::ranges::count(defined, false) > 0;
    const bool differentiable = at::GradMode::is_enabled();
    if ((differentiable && program_->torch_level) || none)
      return handed_on(replayed(std::move(tangents), differentiable));
    const at::AutoGradMode no_grad(false);
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list ends;
    if (differentiable) ends = inputs_, ends.insert(ends.end(), tangents.begin(), tangents.end());
    variable_list given = unpack();
    const size_t checked = saved_.size();
    // What is saved dies while the backward runs, unless there is to be another one.
    if (!torch::autograd::get_current_graph_task_keep_graph()) release();
    fit(given, tangents);
    std::ranges::move(tangents, std::back_inserter(given));
    const std::vector<bool> asked = asked_for(defined);
    const PartedComputation* in_parts = backward_.parts.computation();
    if (!in_parts || differentiable || std::ranges::count(asked, false) > 0) {
      variable_list gradients = backward_.compute(std::move(given), asked, program_->prune);
      if (differentiable) refuse_further_gradients(gradients, ends);
      return handed_on(std::move(gradients));
    }
    std::vector<const at::Tensor*> pointers;
    for (const at::Tensor& tensor : given) pointers.push_back(&tensor);
    auto passage = std::make_unique<GradientPassage>(*in_parts, in_parts->begin(pointers.data(), checked));
    given.clear();
    return GradientPassage::give(std::move(passage), backward_.parts, 0);
  }

 private:
  /// By leaf: whether its gradient is wanted, from this node or one behind it.
  std::vector<bool> asked_for(const std::vector<bool>& defined) {
    std::vector<bool> asked(backward_.ties.leaves.size());
    for (size_t part = 0; part < backward_.parts.count(); ++part) {
      const Node& node = part == 0 ? *this : *behind_[part - 1];
      const std::vector<size_t>& leaves = backward_.parts.leaves(part);
      for (size_t i = 0; i < leaves.size(); ++i) {
        const autograd::Backward::Leaf& leaf = backward_.ties.leaves[leaves[i]];
        asked[leaves[i]] = leaf.gradient >= 0 && is_reached(leaf, defined) && node.task_should_compute_output(i);
      }
    }
    return asked;
  }

  /// Gradients of all leaves, as this node gives them.
  variable_list handed_on(variable_list&& gradients) const {
    if (behind_.empty()) return std::move(gradients);
    return GradientPassage::give(std::make_unique<GradientPassage>(std::move(gradients)), backward_.parts, 0);
  }

  /// Under the lock.
  void release() {
    for (SavedVariable& saved : saved_) saved.reset_data();
    reread_.clear();
    inputs_.clear();
    pending_.reset();
    released_ = true;
  }

  /// What the backward reads of the forward. Under the lock.
  variable_list unpack() {
    variable_list given;
    given.reserve(backward_.saved.size());
    for (const SavedVariable& saved : saved_) given.push_back(saved.unpack(this->getptr()));
    TORCH_CHECK(!released_ || reread_.size() == backward_.ties.reread, torch::autograd::ERR_BACKWARD_TWICE);
    given.insert(given.end(), reread_.begin(), reread_.end());
    return given;
  }

  static std::vector<bool> defined_of(const variable_list& tangents) {
    std::vector<bool> defined;
    for (const at::Tensor& tangent : tangents) defined.push_back(tangent.defined());
    return defined;
  }

  static bool is_reached(const autograd::Backward::Leaf& leaf, const std::vector<bool>& defined) {
    for (size_t i = 0; i < defined.size(); ++i) {
      if (defined[i] && leaf.reached_from[i]) return true;
    }
    return false;
  }

  /// Tangents as the backward was made for them: zeros where there is none, and with the strides of the capture.
  void fit(const variable_list& saved, variable_list& tangents) const {
    graph::SymbolValues symbols;
    if (!backward_.symbols.empty()) {
      std::vector<const at::Tensor*> given;
      for (const at::Tensor& tensor : saved) given.push_back(&tensor);
      // A tangent has the sizes of its result, whatever its strides: symbols found in one are known before it is
      // fitted.
      std::vector<at::Tensor> sized(tangents.begin(), tangents.end());
      for (size_t i = 0; i < sized.size(); ++i) {
        if (!sized[i].defined()) sized[i] = torch::autograd::Node::input_metadata(i).zeros_like();
      }
      for (const at::Tensor& tensor : sized) given.push_back(&tensor);
      symbols = backward_.symbols.read(given.data());
    }
    for (size_t i = 0; i < tangents.size(); ++i) {
      const graph::TensorMeta& meta = backward_.tangents[i];
      std::vector<int64_t> sizes = meta.sizes, strides = meta.strides;
      if (meta.symbolic) {
        for (size_t dim = 0; dim < sizes.size(); ++dim) {
          sizes[dim] = symbols(meta.symbolic->sizes[dim]);
          strides[dim] = symbols(meta.symbolic->strides[dim]);
        }
      }
      at::Tensor& tangent = tangents[i];
      if (tangent.defined() && tangent.layout() == at::kStrided && tangent.strides() == c10::IntArrayRef(strides) &&
          !tangent.is_conj() && !tangent.is_neg()) {
        continue;
      }
      at::Tensor fitted = at::empty_strided(sizes, strides, at::TensorOptions(meta.dtype).device(meta.device));
      tangent.defined() ? fitted.copy_(tangent) : fitted.zero_();
      tangent = std::move(fitted);
    }
  }

  /// Gradients that have gradients, or that backwards of the program's decide by what is None: the torch level runs
  /// again under autograd, from the same inputs.
  variable_list replayed(variable_list&& tangents, bool differentiable) {
    const at::AutoGradMode with_grad(true);
    TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      TORCH_CHECK(
          inputs_[i].is_inference() || inputs_[i]._version() == versions_[i],
          "one of the variables needed for gradient computation has been modified by an inplace operation: input ", i,
          " of a compiled segment");
    }
    // Inputs may have been computed from each other: what is differentiated for are their aliases, which have not.
    variable_list inputs = inputs_, leaves, all, roots, given;
    for (const BackwardProgram::Place& leaf : backward_.leaves) {
      leaves.push_back(leaf.input ? inputs[leaf.index] = inputs_[leaf.index].alias() : at::Tensor());
    }
    {
      const AutocastScope scope(autocast_);
      with_python([&] { all = replay(inputs); });
    }
    autograd::StoppedNodes stopped;
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (backward_.leaves[i].input) continue;
      leaves[i] = all[backward_.leaves[i].index];
      stopped.add(*leaves[i].grad_fn());
    }
    for (size_t i = 0; i < tangents.size(); ++i) {
      if (!tangents[i].defined()) continue;
      roots.push_back(all[backward_.ties.roots[i]]);
      given.push_back(tangents[i]);
    }
    if (roots.empty()) return variable_list(leaves.size());
    return torch::autograd::grad(roots, leaves, given, /*retain_graph=*/differentiable,
                                 /*create_graph=*/differentiable, /*allow_unused=*/true);
  }

  /// All roots, computed under autograd.
  variable_list replay(const variable_list& given) const {
    std::vector<at::Tensor> states;
    for (size_t i = 0; i < random_states_.size(); ++i) {
      at::Generator generator = program_->generators[i];
      const std::lock_guard<std::mutex> lock(generator.mutex());
      states.push_back(generator.get_state());
      generator.set_state(random_states_[i]);
    }
    std::vector<Ref> inputs;
    std::vector<PyObject*> pointers;
    for (const at::Tensor& input : given) inputs.push_back(checked(THPVariable_Wrap(input)));
    for (const size_t i : program_->written) {
      inputs[i] = checked(THPVariable_Wrap(given[i].requires_grad() ? given[i].clone() : copy(given[i])));
    }
    for (const Ref& input : inputs) pointers.push_back(input.get());
    std::vector<PyObject*> results(program_->results.outputs.size());
    program_->torch_level->run(pointers.data(), results.data());
    variable_list outputs, roots;
    for (PyObject* result : results) outputs.push_back(THPVariable_Unpack(Ref::steal(result).get()));
    for (const autograd::Results::Computed& root : program_->results.computed) {
      roots.push_back(root.is_base ? at::Tensor(outputs[root.output]._base()) : outputs[root.output]);
    }
    for (const size_t i : program_->written_roots) roots.push_back(THPVariable_Unpack(inputs[i].get()));
    for (size_t i = 0; i < states.size(); ++i) {
      at::Generator generator = program_->generators[i];
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(states[i]);
    }
    return roots;
  }

  std::shared_ptr<const Program> program_;
  const BackwardProgram& backward_;                   // of the program
  std::vector<Node*> behind_;                         // the nodes of the parts behind the first
  const std::shared_ptr<autograd::RootHooks> hooks_;  // none, where none are refused
  std::vector<SavedVariable> saved_;
  std::vector<at::Tensor> reread_;  // inputs behind them, as they are when the backward runs
  variable_list inputs_;
  std::vector<uint32_t> versions_;
  std::vector<at::Tensor> random_states_;
  const Autocast autocast_;
  std::optional<PendingBackward> pending_;
  bool released_ = false;
};

class JointComputation final : public Computation {
 public:
  explicit JointComputation(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  void run(PyObject* const* inputs, PyObject** outputs) const override {
    const Program& program = *program_;
    std::vector<at::Tensor> held;
    std::vector<const at::Tensor*> pointers;
    held.reserve(program.forward->input_count());
    for (size_t i = 0; i < program.forward->input_count(); ++i) held.push_back(THPVariable_Unpack(inputs[i]));
    for (const at::Tensor& tensor : held) pointers.push_back(&tensor);
    program.inside.refuse(inputs);
    if (is_unusual(held) || writes_unusually(held) || calls_hooks(held)) {
      if (program.torch_level) return run_torch_level(inputs, pointers, outputs);
      PyErr_Format(PyExc_RuntimeError, "%snobody looks on while classes of tensors say what operators do", kNotSo);
      throw ComputationError{};
    }
    std::vector<torch::autograd::edge_list> edges;  // from before inputs are written
    for (const BackwardProgram& backward : program.backwards) {
      torch::autograd::edge_list& of_one = edges.emplace_back();
      for (const BackwardProgram::Place& leaf : backward.leaves) {
        of_one.push_back(leaf.input ? edge_of_input(held[leaf.index], leaf.placements) : torch::autograd::Edge());
      }
    }
    std::vector<at::Tensor> states, originals, results(program.forward->output_count());
    const bool ok = with_torch_errors([&] {
      const WithoutGil without_gil;
      for (at::Generator generator : program.generators) {
        const std::lock_guard<std::mutex> lock(generator.mutex());
        states.push_back(generator.get_state());
      }
      for (const size_t i : program.written) originals.push_back(original_of(held[i]));
      program.forward->compute(pointers.data(), results.data());
    });
    if (!ok) throw PythonError{};
    for (size_t i = 0; i < program.backwards.size(); ++i) {
      const BackwardProgram& backward = program.backwards[i];
      for (size_t leaf = 0; leaf < backward.leaves.size(); ++leaf) {  // roots have their nodes already
        const BackwardProgram::Place& place = backward.leaves[leaf];
        if (!place.input) edges[i][leaf] = torch::autograd::impl::gradient_edge(results[place.index]);
      }
      auto node = make_autograd_node<GradientNode>(program_, backward,
                                                   GradientChain(program_, backward.parts, std::move(edges[i])));
      variable_list roots;
      for (const size_t root : backward.ties.roots) {
        const bool written = root >= program.results.computed.size();
        // A view of memory that nobody else has: autograd would take its base for a leaf.
        if (!written && results[root].is_view()) results[root] = results[root].variable_data();
        roots.push_back(written ? held[program.written_roots[root - program.results.computed.size()]] : results[root]);
        node->add_input_metadata(roots.back());
      }
      const auto to = autograd::edges_of_roots(node, roots, backward.ties.nodes, node->hooks());
      for (size_t root = 0; root < roots.size(); ++root) {
        const bool written = backward.ties.roots[root] >= program.results.computed.size();
        using namespace torch::autograd::impl;
        written ? rebase_history(roots[root], to[root]) : set_gradient_edge(roots[root], to[root]);
      }
      node->save(pointers, originals, results.data());
      node->keep_random_state(states);
    }
    for (const FreedRoot& freed : program.freed) set_freed_history(results[freed.root], freed, held);
    std::vector<at::Tensor> given(program.results.outputs.size());
    if (!with_torch_errors([&] { program.views.make(pointers.data(), results.data(), given.data()); })) {
      throw PythonError{};
    }
    results.clear();
    for (size_t i = 0; i < given.size(); ++i) outputs[i] = checked(THPVariable_Wrap(std::move(given[i]))).release();
  }
  std::string print() const override {
    std::string text = "forward:\n" + program_->forward->print();
    for (const BackwardProgram& backward : program_->backwards) text += "backward:\n" + backward.computation->print();
    return text;
  }

  OnError on_error() const override {
    const OnError forward = program_->forward->on_error();
    // Eager's writes give inputs a history at once, ours when all is computed.
    return forward == OnError::AsEager && !program_->written_roots.empty() ? OnError::Between : forward;
  }

  bool is_users() const override { return program_->forward->is_users(); }

 private:
  /// What raises leaves the state that the forward would leave.
  void run_torch_level(PyObject* const* inputs, const std::vector<const at::Tensor*>& tensors,
                       PyObject** outputs) const {
    SavedState saved;
    if (on_error() == OnError::Untouched && !at::SavedTensorDefaultHooks::get_hooks()) {
      saved = SavedState(program_->undo, tensors.data(), /*tensors=*/true);
    }
    try {
      program_->torch_level->run(inputs, outputs);
    } catch (const PythonError&) {
      const SavedError error;
      saved.restore();
      throw;
    }
  }

  /// Somebody watches what autograd does operator by operator, or differentiates forwards.
  static bool is_unusual(const std::vector<at::Tensor>& inputs) {
    if (torch::autograd::AnomalyMode::is_enabled()) return true;
    if (at::SavedTensorDefaultHooks::get_hooks(/*ignore_is_tracing=*/true)) return true;
    return std::ranges::any_of(inputs, [](const at::Tensor& input) {
      const auto* meta = torch::autograd::impl::get_autograd_meta(input);
      return meta && meta->fw_grad_;
    });
  }

  /// An input that gets a history of its own is a leaf, which eager refuses, or has others that belong to it.
  bool writes_unusually(const std::vector<at::Tensor>& inputs) const {
    return std::ranges::any_of(program_->written_roots, [&](size_t i) {
      const at::Tensor& written = inputs[i];
      const auto shares = [&](const at::Tensor& other) { return other.is_alias_of(written); };
      return written.is_view() || (written.requires_grad() && written.is_leaf()) ||
             std::ranges::count_if(inputs, shares) > 1;
    });
  }

  /// A gradient that is taken inside passes hooks of an input.
  bool calls_hooks(const std::vector<at::Tensor>& inputs) const {
    return program_->results.with_hooks && std::ranges::any_of(inputs, [](const at::Tensor& input) {
             if (!input.requires_grad()) return false;
             if (!input.is_leaf()) {
               Node& history = *input.grad_fn();
               return !history.tensor_pre_hooks().empty() || !history.retains_grad_hooks().empty();
             }
             return !torch::autograd::impl::hooks(input).empty();
           });
  }

  /// What an input was before it is written, with its history.
  static at::Tensor original_of(const at::Tensor& input) {
    at::Tensor original = copy(input);
    if (input.requires_grad()) {
      torch::autograd::impl::set_gradient_edge(original, torch::autograd::impl::gradient_edge(input));
    }
    return original;
  }

  std::shared_ptr<const Program> program_;
};

}  // namespace

std::unique_ptr<Computation> make_joint_computation(const graph::Graph& graph, autograd::Joint joint,
                                                    std::unique_ptr<TensorComputation> forward,
                                                    std::vector<std::unique_ptr<TensorComputation>> computations,
                                                    std::unique_ptr<Computation> torch_level, Specialise prune) {
  [[maybe_unused]] static const bool shown = [] {
    autograd::show_as_compiled_function(typeid(GradientNode));
    autograd::show_as_compiled_function(typeid(autograd::RootNode));
    return true;
  }();
  // The last tensor with this history may go where the GIL is not held: the torch level consists of Python objects.
  const std::shared_ptr<Program> program(new Program(graph, joint.results), [](Program* last) {
    if (!Py_IsInitialized()) return;
    const WithGil gil;
    delete last;
  });
  const graph::Graph whole = forward_of(graph, joint);
  const auto position = [](const std::vector<graph::ValueId>& ids, graph::ValueId id) {
    return static_cast<size_t>(std::ranges::find(ids, id) - ids.begin());
  };
  for (size_t i = 0; i < joint.backwards.size(); ++i) {
    BackwardProgram& made = program->backwards.emplace_back(std::move(joint.backwards[i]), std::move(computations[i]));
    const autograd::Backward& ties = made.ties;
    for (const graph::ValueId id : ties.saved) {
      const bool input = graph.values[id].kind == graph::ValueKind::Input;
      made.saved.push_back({input, position(input ? graph.inputs : whole.outputs, id)});
    }
    for (const autograd::Backward::Leaf& leaf : ties.leaves) {
      const size_t index = leaf.root ? *leaf.root : position(graph.inputs, leaf.input);
      made.leaves.push_back({!leaf.root, index, leaf.placements});
    }
    for (size_t root = 0; root < ties.roots.size(); ++root) {
      made.tangents.push_back(ties.graph.values[ties.graph.inputs[ties.saved.size() + root]].meta);
    }
  }
  program->generators = generators_of(graph);
  const graph::Aliases aliases(graph);
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (aliases.written(graph.inputs[i])) program->written.push_back(i);
  }
  program->undo = graph::undo_of(graph);
  if (joint.results.with_hooks) program->inside = BackwardInside(graph, joint.results.leaves);
  for (const auto& written : joint.results.written) {
    program->written_roots.push_back(position(graph.inputs, written.input));
  }
  for (const autograd::Results::Freed& freed : joint.results.freed) {
    FreedRoot& made = program->freed.emplace_back(FreedRoot{.root = freed.root, .error = freed.error});
    for (const graph::ValueId leaf : freed.leaves) made.leaves.push_back(position(graph.inputs, leaf));
  }
  program->forward = std::move(forward);
  program->torch_level = std::move(torch_level);
  program->prune = std::move(prune);
  return std::make_unique<JointComputation>(program);
}

}  // namespace magneto::runtime
