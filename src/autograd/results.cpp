#include "autograd/results.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "autograd/nodes.h"
#include "graph/aliases.h"
#include "passes/effects.h"

namespace magneto::autograd {

namespace {

using graph::Graph;
using graph::Value;
using graph::ValueId;
using graph::ValueKind;

const c10::StorageImpl* memory_of(const at::Tensor& fake) {
  return fake.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

/// False: the view was made under no_grad, which autograd remembers for when somebody writes to it.
bool made_with_grad(const at::Tensor& fake) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(fake);
  if (!view || !view->has_bw_view()) return true;
  return view->get_creation_meta() != torch::autograd::CreationMeta::NO_GRAD_MODE;
}

/// Its result is a view in autograd's eyes. That of `_unsafe_view`, which products of three dimensions end with, is
/// none.
bool gives_views(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return !returns.empty() && returns[0].alias_info();
}

/// The way from a value up to what it is a view of.
Results::Output way_to_base(const Graph& graph, ValueId id) {
  Results::Output way{.base = id};
  for (;;) {
    const Value& value = graph.values[way.base];
    if (value.kind != ValueKind::Result) break;
    const graph::AtenNode& node = graph.aten_nodes[value.producer];
    const passes::OperatorTraits& traits = passes::traits_of(node.op);
    const auto* of = std::get_if<ValueId>(&node.args[0]);
    if (!traits.aliases || traits.writes || !of || !gives_views(node.op)) break;
    way.views.push_back(static_cast<size_t>(value.producer));
    way.base = *of;
  }
  std::ranges::reverse(way.views);
  return way;
}

/// What autograd knows of the view is what the view operators do: the history of the base, and theirs. (A custom
/// function may give a view a history of its own, what is detached may be a leaf of its own, and where a class of
/// tensors says what operators do, the graph has what it called, and autograd what it was called for.)
bool has_history_of_views(const at::Tensor& fake, const at::Tensor& base, size_t views) {
  if (!fake.requires_grad()) return true;
  if (torch::autograd::impl::get_autograd_meta(fake)->requires_grad_) return false;
  if (!base.requires_grad()) return false;
  const auto& end = torch::autograd::impl::gradient_edge(base).function;
  auto node = fake.grad_fn();  // none: made under no_grad
  for (size_t i = 0; node && node != end; ++i) {
    if (i == views || is_python(*node) || node->next_edges().empty()) return false;
    if (node->num_inputs() > 0 && node->input_metadata(0).is_tensor_subclass()) return false;
    node = node->next_edge(0).function;
  }
  return true;
}

/// A tensor that says where the view lies is written: when the view is made again, it says another place.
bool has_written_place(const graph::AtenNode& view, const graph::Aliases& aliases) {
  return std::ranges::any_of(view.args.begin() + 1, view.args.end(), [&](const graph::AtenArg& arg) {
    const auto* place = std::get_if<ValueId>(&arg);
    return place && aliases.written(*place);
  });
}

}  // namespace

void Results::add_places(const Graph& graph) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const size_t view : outputs[i].views) {
      const std::vector<graph::AtenArg>& args = graph.aten_nodes[view].args;
      for (size_t k = 1; k < args.size(); ++k) {
        const auto* place = std::get_if<ValueId>(&args[k]);
        if (!place || graph.values[*place].kind == ValueKind::Input) continue;
        if (std::ranges::count(computed, *place, &Computed::value)) continue;
        computed.push_back({.value = *place, .fake = {}, .output = i});
      }
    }
  }
}

std::optional<Results> results_of(const Graph& graph, const std::vector<at::Tensor>& fakes,
                                  const std::vector<at::Tensor>& inputs,
                                  const std::function<ValueId(const at::Tensor&)>& value_of) {
  std::unordered_map<const c10::StorageImpl*, size_t> users;
  for (const at::Tensor& fake : fakes) ++users[memory_of(fake)];
  std::unordered_map<const c10::StorageImpl*, ValueId> base_of;
  for (const at::Tensor& input : inputs) users[memory_of(input)] += 1;
  const std::set<ValueId> changed = graph::changed_in_place(graph);
  const graph::Aliases aliases(graph);
  Results results;
  for (size_t i = 0; i < fakes.size(); ++i) {
    const ValueId id = graph.outputs[i];
    const c10::StorageImpl* memory = memory_of(fakes[i]);
    if (users[memory] == 1) {
      results.outputs.push_back({.base = id});
      results.computed.push_back({id, fakes[i], i});
      continue;
    }
    Results::Output output = way_to_base(graph, id);
    output.with_grad = made_with_grad(fakes[i]);
    for (const size_t view : output.views) {
      const graph::AtenNode& node = graph.aten_nodes[view];
      if (changed.contains(std::get<ValueId>(node.args[0])) || has_written_place(node, aliases)) return {};
    }
    if (changed.contains(id) && !output.views.empty()) return {};
    const bool input = graph.values[output.base].kind == ValueKind::Input;
    // Inputs that share memory may each be the base.
    if (!input && base_of.try_emplace(memory, output.base).first->second != output.base) return {};
    if (!input && std::ranges::count(results.computed, output.base, &Results::Computed::value) == 0) {
      const auto itself = std::ranges::find(graph.outputs, output.base);
      if (itself != graph.outputs.end()) {
        const auto place = static_cast<size_t>(itself - graph.outputs.begin());
        results.computed.push_back({output.base, fakes[place], place});
      } else {
        const at::Tensor base = fakes[i].is_view() ? at::Tensor(fakes[i]._base()) : at::Tensor();
        if (!base.defined() || value_of(base) != output.base) return {};
        results.computed.push_back({output.base, base, i, /*is_base=*/true});
      }
    }
    const auto computed = std::ranges::find(results.computed, output.base, &Results::Computed::value);
    const at::Tensor& base =
        input ? inputs[std::ranges::find(graph.inputs, output.base) - graph.inputs.begin()] : computed->fake;
    if (!output.views.empty() && !has_history_of_views(fakes[i], base, output.views.size())) return {};
    results.outputs.push_back(std::move(output));
  }
  // A base that an input shares its memory with, and is none of the inputs.
  for (const at::Tensor& input : inputs) {
    if (base_of.contains(memory_of(input))) return {};
  }
  results.add_places(graph);
  return results;
}

}  // namespace magneto::autograd
