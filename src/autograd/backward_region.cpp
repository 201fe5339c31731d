#include "autograd/backward_region.h"

#include <ATen/Context.h>
#include <c10/util/hash.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "autograd/compiled_node.h"
#include "autograd/node_fields.h"
#include "autograd/nodes.h"

namespace magneto::autograd {

bool is_plain(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet unusual({c10::DispatchKey::Python, c10::DispatchKey::Conjugate,
                                         c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor,
                                         c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched,
                                         c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize});
  return tensor.layout() == at::kStrided && tensor.device().is_cpu() && !tensor.is_quantized() && !tensor.is_nested() &&
         tensor.has_storage() && !tensor.key_set().has_any(unusual);
}

namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

class SavedCheck final : public FieldVisitor {
 public:
  void tensor(SavedVariable& saved) override {
    has_hooks |= saved.has_hooks();
    const auto raw = saved.get_raw_data();
    unusual |= raw && raw->defined() && !is_plain(*raw);
  }
  void number(int64_t) override {}
  void symint(c10::SymInt&, bool) override {}

  bool has_hooks = false, unusual = false;
};

std::string why_not_plain(const Node& node) {
  for (uint32_t i = 0; i < node.num_inputs(); ++i) {
    const auto& meta = node.input_metadata(i);
    if (meta.was_default_constructed()) continue;
    if (meta.is_tensor_subclass() || meta.is_nested_tensor() || meta.layout() != at::kStrided ||
        !meta.device().is_cpu()) {
      return "gradients that are no plain tensors of the CPU";
    }
  }
  return {};
}

constexpr const char* kHooks = "hooks on gradients inside";
constexpr const char* kBuckets = "buckets of DistributedDataParallel";

/// Empty: a program can compute what the node computes.
std::string why_outside(Node& node) {
  if (dynamic_cast<torch::autograd::AccumulateGrad*>(&node)) return "a leaf";
  if (has_hooks(node)) return kHooks;
  if (is_python(node)) return "a custom autograd.Function (" + node.name() + ")";
  if (std::string why = why_not_plain(node); !why.empty()) return why;
  if (dynamic_cast<ContinuingNode*>(&node)) return kBuckets;
  if (auto* compiled = dynamic_cast<CompiledNode*>(&node)) return compiled->is_cut() ? kBuckets : compiled->why_apart();
  if (!has_known_fields(node)) return "a node of autograd that is not known: " + node.name();
  SavedCheck check;
  visit_fields(node, check);
  if (check.has_hooks) return "hooks on saved tensors";
  return check.unusual ? "saved tensors that are no plain tensors of the CPU" : "";
}

bool is_ours(BackwardRegion::Role role) {
  return role == BackwardRegion::Role::Inside || role == BackwardRegion::Role::Called;
}

}  // namespace

/// Comes to the nodes in the engine's order: of those whose gradients are complete the one that was made last.
class BackwardRegion::Walk {
 public:
  Walk(BackwardRegion& region, const edge_list& roots, const edge_list& asked) : region_(region) {
    for (const Edge& edge : asked) asked_[edge.function.get()] = true;
    count_dependencies(roots);
    for (const Edge& root : roots) arrive(root, /*inside=*/true);
    while (!ready_.empty()) {
      const NodePointer node = ready_.top().node;
      ready_.pop();
      State& state = states_.at(node.get());
      state.step = static_cast<int32_t>(region_.steps_.size());
      Step& step = region_.steps_.emplace_back(Step{.node = node});
      step.role = role_of(*node, state);
      for (const Edge& next : node->next_edges()) arrive(next, is_ours(step.role));
    }
    link(roots, !asked.empty());
  }

 private:
  struct State {
    int32_t missing = 0, step = -1;
    bool only_inside = true, from_inside = false;
  };
  struct Ready {
    NodePointer node;
    uint64_t made;
  };
  struct Later {
    bool operator()(const Ready& a, const Ready& b) const { return a.made < b.made; }
  };

  void count_dependencies(const edge_list& roots) {
    std::vector<Node*> open;
    const auto meet = [&](const Edge& edge) {
      if (!edge.is_valid()) return;
      const auto [known, is_new] = states_.try_emplace(edge.function.get());
      ++known->second.missing;
      if (is_new) open.push_back(edge.function.get());
    };
    std::ranges::for_each(roots, meet);
    while (!open.empty()) {
      Node* node = open.back();
      open.pop_back();
      std::ranges::for_each(node->next_edges(), meet);
    }
  }

  void arrive(const Edge& edge, bool inside) {
    if (!edge.is_valid()) return;
    State& state = states_.at(edge.function.get());
    state.only_inside &= inside;
    state.from_inside |= inside;
    if (--state.missing == 0) ready_.push({edge.function, edge.function->sequence_nr()});
  }

  Role role_of(Node& node, const State& state) {
    const Role outside = state.from_inside ? Role::End : Role::Outside;
    if (!state.only_inside || asked_.contains(&node)) return outside;
    const std::string why = why_outside(node);
    if (why.empty()) return Role::Inside;
    if (dynamic_cast<torch::autograd::AccumulateGrad*>(&node)) return outside;
    const bool by_design = why == kHooks || why == kBuckets || is_python(node);
    // On other devices the engine has threads and streams for them.
    const bool calls = asked_.empty() && why_not_plain(node).empty();
    if (!calls || !by_design) ++region_.left_[why];
    return calls ? Role::Called : outside;
  }

  /// Backwards, so that it is known what leads to what is asked for.
  void link(const edge_list& roots, bool some) {
    std::vector<bool> needed(region_.steps_.size());
    const auto target = [&](const Edge& edge) -> Target {
      if (!edge.is_valid()) return {};
      const int32_t step = states_.at(edge.function.get()).step;
      return needed[step] ? Target{step, edge.input_nr} : Target{};
    };
    const auto gives = [&](const Target& to) {
      if (to.step < 0 || region_.steps_[to.step].role != Role::End) return;
      std::vector<uint32_t>& given = region_.steps_[to.step].given;
      const auto place = std::ranges::lower_bound(given, to.input);
      if (place == given.end() || *place != to.input) given.insert(place, to.input);
    };
    for (size_t i = region_.steps_.size(); i-- > 0;) {
      Step& step = region_.steps_[i];
      for (const Edge& next : step.node->next_edges()) step.next.push_back(target(next));
      const auto leads = [](const Target& to) { return to.step >= 0; };
      needed[i] = !some || asked_.contains(step.node.get()) || std::ranges::any_of(step.next, leads);
      if (is_ours(step.role) && needed[i]) std::ranges::for_each(step.next, gives);
      if (step.role == Role::Inside && !needed[i]) step.role = Role::Outside;
    }
    for (const Edge& root : roots) region_.roots_.push_back(target(root));
    std::ranges::for_each(region_.roots_, gives);
  }

  BackwardRegion& region_;
  std::unordered_map<const Node*, bool> asked_;
  std::unordered_map<const Node*, State> states_;
  std::priority_queue<Ready, std::vector<Ready>, Later> ready_;
};

BackwardRegion::BackwardRegion(const edge_list& roots, const edge_list& asked) { Walk(*this, roots, asked); }

size_t BackwardRegion::count(Role role) const {
  return static_cast<size_t>(std::ranges::count(steps_, role, &Step::role));
}

size_t BackwardRegion::piece_end(size_t first) const {
  return static_cast<size_t>(std::ranges::find(steps_.begin() + first, steps_.end(), Role::Called, &Step::role) -
                             steps_.begin());
}

// -- pieces

/// What a node has saved, and all else that its formula is given.
class BackwardPiece::Fields final : public FieldVisitor {
 public:
  Fields(BackwardPiece& piece, Node& node, size_t step)
      : piece_(piece), node_(node), step_(static_cast<int32_t>(step)) {}
  void tensor(SavedVariable& saved) override {
    const at::Tensor tensor = saved.unpack(node_.getptr());
    number(tensor.defined());
    if (tensor.defined()) piece_.tensors_.push_back(tensor.variable_data());
  }
  void number(int64_t number) override { piece_.key_.push_back(number); }
  void symint(c10::SymInt& number, bool in_list) override {
    piece_.numbers_.add(number.expect_int(), {in_list ? NumberPlace::Kind::Listed : NumberPlace::Kind::Single, step_});
  }

 private:
  BackwardPiece& piece_;
  Node& node_;
  const int32_t step_;
};

BackwardPiece::BackwardPiece(const BackwardRegion& region, size_t first, const Arrived& arrived)
    : region_(region), first_(first), end_(region.piece_end(first)) {
  const std::vector<Step>& steps = region.steps();
  const auto inside = [](const Step& step) { return step.role == Role::Inside; };
  if (std::none_of(steps.begin() + first, steps.begin() + end_, inside)) return;
  key_.push_back(at::globalContext().deterministicAlgorithms());
  for (size_t i = first; i < end_; ++i) {
    saved_.push_back(tensors_.size());
    step_numbers_.push_back(numbers_.values.size());
    key_.push_back(static_cast<int64_t>(steps[i].role == Role::Inside));
    if (steps[i].role != Role::Inside) continue;
    for (uint32_t input = 0; input < arrived[i].size(); ++input) take({static_cast<int32_t>(i), input}, arrived);
    for (const Target& to : steps[i].next) take(to, arrived);
    add_step(i);
  }
  for (size_t i = 0; i < taken_.size(); ++i) {
    key_.push_back(taken_[i].step - static_cast<int64_t>(first_));
    key_.push_back(taken_[i].input);
    add_form(tangents_[i], key_, numbers_);
  }
  outline_ = numbers_.values.size();
  key_.push_back(static_cast<int64_t>(outline_));
  for (size_t i = 0; i < of_segments_.values.size(); ++i) {
    numbers_.add(of_segments_.values[i], of_segments_.places[i]);
  }
}

void BackwardPiece::take(const Target& place, const Arrived& arrived) {
  if (place.step < 0) return;
  const variable_list& there = arrived[place.step];
  if (place.input >= there.size() || !there[place.input].defined()) return;
  const auto same = [&](const Target& known) { return known.step == place.step && known.input == place.input; };
  if (std::ranges::any_of(taken_, same)) return;
  taken_.push_back(place);
  tangents_.push_back(there[place.input].variable_data());
}

void BackwardPiece::add_form(const at::Tensor& tensor, std::vector<int64_t>& key, Numbers& numbers) {
  const auto number = static_cast<int32_t>(tensor_numbers_.size());
  key.push_back(static_cast<int64_t>(tensor.scalar_type()) * 2 + tensor.unsafeGetTensorImpl()->is_wrapped_number());
  key.push_back(tensor.dim());
  tensor_numbers_.push_back({numbers.values.size(), &numbers == &of_segments_});
  for (int32_t dim = 0; dim < tensor.dim(); ++dim) {
    numbers.add(tensor.size(dim), {NumberPlace::Kind::Size, number, dim});
  }
  for (int32_t dim = 0; dim < tensor.dim(); ++dim) {
    numbers.add(tensor.stride(dim), {NumberPlace::Kind::Stride, number, dim});
  }
}

void BackwardPiece::add_form(const torch::autograd::InputMetadata& meta, size_t step) {
  if (meta.was_default_constructed()) return key_.push_back(-1);
  key_.push_back(static_cast<int64_t>(c10::typeMetaToScalarType(meta.dtype())));
  key_.push_back(meta.grad_dtype() ? static_cast<int64_t>(*meta.grad_dtype()) : -1);
  const auto sizes = meta.shape_as_dim_vector();
  key_.push_back(static_cast<int64_t>(sizes.size()));
  for (const c10::SymInt& size : sizes) {
    numbers_.add(size.expect_int(), {NumberPlace::Kind::Gradient, static_cast<int32_t>(step)});
  }
}

void BackwardPiece::add_step(size_t i) {
  const Step& step = region_.steps()[i];
  Node& node = *step.node;
  key_.push_back(node.num_inputs());
  for (uint32_t input = 0; input < node.num_inputs(); ++input) add_form(node.input_metadata(input), i);
  key_.push_back(static_cast<int64_t>(step.next.size()));
  for (size_t next = 0; next < step.next.size(); ++next) {
    const Target& to = step.next[next];
    key_.push_back(to.step < 0 ? -1 : to.step - static_cast<int64_t>(first_));
    key_.push_back(to.input);
    const Edge& edge = node.next_edges()[next];
    if (edge.is_valid()) add_form(edge.function->input_metadata(edge.input_nr), i);
  }
  key_.push_back(static_cast<int64_t>(typeid(node).hash_code()));
  structure_ = c10::hash_combine(structure_, typeid(node).hash_code());
  if (auto* compiled = dynamic_cast<CompiledNode*>(&node)) return add_segment(*compiled);
  const size_t before = tensors_.size();
  Fields fields(*this, node, i);
  visit_fields(node, fields);
  for (size_t tensor = before; tensor < tensors_.size(); ++tensor) add_form(tensors_[tensor], key_, numbers_);
}

/// Which tensors it has saved, and how many, its program says.
void BackwardPiece::add_segment(CompiledNode& node) {
  const Backward& backward = node.backward();
  programs_.push_back(reinterpret_cast<int64_t>(&backward));
  owners_.push_back(node.owner());
  const variable_list saved = node.saved_tensors();
  for (size_t i = 0; i < saved.size(); ++i) {
    tensors_.push_back(saved[i].variable_data());
    const auto number = static_cast<int32_t>(tensor_numbers_.size());
    add_form(tensors_.back(), programs_, of_segments_);
    for (const graph::SymbolBinding& symbol : backward.graph.symbols) {
      if (symbol.dim >= 0 || symbol.value != backward.graph.inputs[i]) continue;
      of_segments_.add(*saved[i].const_data_ptr<int64_t>(), {NumberPlace::Kind::Content, number});
    }
  }
}

size_t BackwardPiece::first_number_of_tensor(size_t tensor) const {
  const auto [first, of_segment] = tensor_numbers_[tensor];
  return of_segment ? outline_ + first : first;
}

void BackwardPiece::release(bool keep_graph) {
  tensors_.clear();
  tangents_.clear();
  for (size_t i = first_; i < end_; ++i) {
    const Step& step = region_.steps()[i];
    if (keep_graph || step.role != Role::Inside) continue;
    step.node->will_release_variables();
    step.node->release_variables();
  }
}

}  // namespace magneto::autograd
