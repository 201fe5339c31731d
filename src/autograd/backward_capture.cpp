#include "autograd/backward_capture.h"

#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <numeric>

#include "autograd/compiled_node.h"
#include "autograd/engine.h"
#include "autograd/kept_gradients.h"
#include "autograd/node_fields.h"
#include "autograd/written_views.h"
#include "fake/sparse_gradients.h"
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

/// While it lives, what a node has saved is other tensors, and its sizes are symbols.
class Swapped final : public FieldVisitor {
 public:
  Swapped(Node& node, const at::Tensor* tensors, const c10::SymInt* symints)
      : node_(node), next_(tensors), next_symint_(symints) {
    visit_fields(node_, *this);
  }
  ~Swapped() override {
    restores_ = true;
    at_ = symint_at_ = 0;
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
  void symint(c10::SymInt& number, bool) override {
    if (restores_) {
      if (symint_at_ < symints_.size()) number = symints_[symint_at_++];
      return;
    }
    symints_.push_back(number);
    number = *next_symint_++;
  }

 private:
  Node& node_;
  const at::Tensor* next_;
  const c10::SymInt* next_symint_;
  std::vector<SavedVariable> kept_;
  std::vector<c10::SymInt> symints_;
  size_t at_ = 0, symint_at_ = 0;
  bool restores_ = false;
};

using Metadata = std::optional<torch::autograd::InputMetadata>;

class BackwardCapture {
 public:
  BackwardCapture(const BackwardPiece& piece, const SymbolChoice& choice, fake::Session& session,
                  CapturedBackward& made)
      : piece_(piece),
        steps_(piece.region().steps()),
        session_(session),
        made_(made),
        symbols_(piece, session, choice),
        gradients_(steps_.size()) {}

  void run() {
    const size_t saved = piece_.tensors().size();
    for (size_t i = 0; i < saved; ++i) saved_.push_back(symbols_.stand_in(i, "saved_" + std::to_string(i + 1)));
    for (size_t i = 0; i < piece_.taken().size(); ++i) {
      add(piece_.taken()[i], symbols_.stand_in(saved + i, "tangents_" + std::to_string(i + 1)));
    }
    session_.assume_floats([](const at::Tensor&) { return false; });
    const EngineScope scope(session_);
    const fake::TakesSparseGradients takes_sparse;
    const c10::AutoGradMode no_grad(false);
    for (size_t i = piece_.first(); i < piece_.end(); ++i) {
      if (steps_[i].role == Role::Inside) run(steps_[i], i);
    }
    if (std::string why = fake::reads_sparse_gradient(made_.graph, 0); !why.empty()) throw Refused{std::move(why)};
    for (size_t i = piece_.first(); i < steps_.size(); ++i) give(i);
  }

  void finish() { made_.guards = symbols_.finish(made_.graph, made_.numbers); }

 private:
  /// As the engine does.
  void add(const BackwardRegion::Target& to, const at::Tensor& gradient) {
    if (to.step < 0 || !gradient.defined()) return;
    variable_list& inputs = gradients_[to.step];
    inputs.resize(steps_[to.step].node->num_inputs());
    at::Tensor& sum = inputs.at(to.input);
    sum = sum.defined() ? at::add(sum, gradient) : gradient;
  }

  /// What is known of a gradient, with the piece's numbers from `number` on, which it steps over, as its sizes.
  Metadata metadata(const torch::autograd::InputMetadata& of, size_t& number) const {
    Metadata made = of;
    if (of.was_default_constructed()) return made;
    for (c10::SymInt& size : made->mutable_shape_as_dim_vector()) size = symbols_.symint(number++);
    return made;
  }

  void run(const Step& step, size_t i) {
    Node& node = *step.node;
    size_t number = piece_.first_number(i);
    std::vector<Metadata> taken, given;
    for (uint32_t input = 0; input < node.num_inputs(); ++input) {
      taken.push_back(metadata(node.input_metadata(input), number));
    }
    for (const torch::autograd::Edge& edge : node.next_edges()) {
      given.push_back(edge.is_valid() ? metadata(edge.function->input_metadata(edge.input_nr), number) : std::nullopt);
    }
    variable_list inputs = std::move(gradients_[i]);
    inputs.resize(node.num_inputs());
    auto* compiled = dynamic_cast<CompiledNode*>(&node);
    variable_list outputs =
        compiled ? run_compiled(*compiled, i, inputs, taken) : call(node, i, number, std::move(inputs));
    if (session_.refused()) throw Refused{};
    torch::autograd::validate_outputs(
        given, outputs, [&](const std::string& what) { return "Function " + node.name() + " returned an " + what; });
    for (size_t edge = 0; edge < outputs.size(); ++edge) add(step.next.at(edge), outputs[edge]);
  }

  /// `number`: where what the node keeps begins.
  variable_list call(Node& node, size_t i, size_t number, variable_list&& inputs) {
    std::vector<c10::SymInt> symints;
    for (; number < piece_.outline() && is_kept(piece_.places()[number], i); ++number) {
      symints.push_back(symbols_.symint(number));
    }
    const Swapped swapped(node, saved_.data() + piece_.first_tensor(i), symints.data());
    if (auto gradients = call_without_writes(node, inputs)) return *std::move(gradients);
    return node(std::move(inputs));
  }

  static bool is_kept(const NumberPlace& place, size_t step) {
    const bool kept = place.kind == NumberPlace::Kind::Listed || place.kind == NumberPlace::Kind::Single;
    return kept && place.owner == static_cast<int32_t>(step);
  }

  /// Its graph, operator by operator.
  variable_list run_compiled(CompiledNode& node, size_t i, const variable_list& tangents,
                             const std::vector<Metadata>& metadata) {
    const Backward& backward = node.backward();
    const size_t first = piece_.first_tensor(i);
    std::vector<at::Tensor> given(saved_.begin() + first, saved_.begin() + first + backward.saved.size());
    for (size_t k = 0; k < tangents.size(); ++k) {
      given.push_back(tangents[k].defined() ? tangents[k] : metadata[k]->zeros_like());
    }
    const auto symbols = symbols_.of_segment(backward.graph, first, given);
    const auto size = [&](shapes::Expr size) {
      return session_.symint(shapes::substitute(size, [&](shapes::Expr symbol) {
        const auto known = symbols.find(symbol.id());
        if (known == symbols.end()) throw Refused{"a data-dependent size"};
        return std::optional(known->second);
      }));
    };
    for (size_t k = backward.saved.size(); k < given.size(); ++k) {
      fit(given[k], backward.graph.values[backward.graph.inputs[k]].meta, size);
    }
    const auto constant = [&](const at::Tensor& constant) { return session_.make_constant(constant); };
    // Which number it is in this run matters to nobody: what looks at it is refused.
    const auto number = [&](const at::Tensor& holder) {
      if (holder.scalar_type() != at::kDouble) throw Refused{"a whole number that only a run knows"};
      return session_.symfloat(holder, /*now=*/1);
    };
    const std::vector<at::Tensor> results = graph::OperatorRun(backward.graph, {constant, size, number}).run(given);
    variable_list gradients;
    for (const Backward::Leaf& leaf : backward.leaves) {
      bool reached = leaf.gradient >= 0, from_tangent = false;
      for (size_t k = 0; k < tangents.size(); ++k) from_tangent |= tangents[k].defined() && leaf.reached_from[k];
      gradients.push_back(reached && from_tangent ? results[leaf.gradient] : at::Tensor());
    }
    return gradients;
  }

  /// The strides that the segment was captured with: those of a dense tensor, whatever the order of its dimensions.
  template <typename Size>
  static void fit(at::Tensor& tangent, const graph::TensorMeta& meta, const Size& size) {
    std::vector<c10::SymInt> strides;
    for (const shapes::Size& each : graph::strides_of(meta)) strides.push_back(size(each.expr()));
    if (tangent.sym_strides() == c10::SymIntArrayRef(strides)) return;
    std::vector<int64_t> order(meta.strides.size()), back(order.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return meta.strides[a] > meta.strides[b]; });
    for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
    tangent = tangent.permute(order).clone(at::MemoryFormat::Contiguous).permute(back);
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
  BackwardSymbols symbols_;
  std::vector<variable_list> gradients_;  // by step
  std::vector<at::Tensor> saved_;
};

bool writes_inputs(const graph::Graph& graph) {
  const graph::Aliases aliases(graph);
  return std::ranges::any_of(graph.inputs, [&](graph::ValueId id) { return aliases.written(id); });
}

}  // namespace

CapturedBackward capture_backward(const BackwardPiece& piece, const SymbolChoice& choice) {
  CapturedBackward made;
  const auto refuse = [&](std::string why) {
    made.refusal = std::move(why);
    made.guards = NumberGuards(piece.numbers());
    return std::move(made);
  };
  {
    fake::Session session(made.graph);
    try {
      BackwardCapture capture(piece, choice, session, made);
      capture.run();
      capture.finish();
      made.specialised = session.counters.specialised_ops;
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
