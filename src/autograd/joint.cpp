#include "autograd/joint.h"

#include <ATen/ops/_nested_get_values.h>
#include <Python.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "autograd/distributed_gradients.h"
#include "autograd/engine.h"
#include "autograd/interpreted_hook.h"
#include "autograd/kept_gradients.h"
#include "autograd/leftover_tasks.h"
#include "autograd/nodes.h"
#include "autograd/read_numbers.h"
#include "autograd/regions.h"
#include "autograd/stopped_nodes.h"
#include "fake/class_dispatch.h"
#include "fake/sparse_gradients.h"
#include "graph/aliases.h"

namespace magneto::autograd {

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

/// The engine cannot be run on the stand-ins: it would do what happens once a run, or call the user's code.
struct Refused {
  std::string why;
};

/// Node and number of a gradient that ends in a leaf.
using EdgeKey = std::pair<const Node*, uint32_t>;
EdgeKey key_of(const Edge& edge) { return {edge.function.get(), edge.input_nr}; }

void check(Node& node, const std::set<const Node*>& ends, const std::set<const c10::TensorImpl*>& kept,
           const WhyNot& why_not) {
  if (ends.contains(&node)) return;
  if (is_python(node)) {
    if (const std::string why = why_not(context_of(node)); !why.empty())
      throw Refused{"a custom autograd.Function (" + node.name() + "): " + why};
  }
  // Of a tensor that is not kept nobody will see the gradient.
  const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(&node);
  if (leaf && kept.contains(leaf->variable.unsafeGetTensorImpl())) {
    throw Refused{"a result that is made inside requires gradients of its own"};
  }
  if (std::string why = why_no_backward(node); !why.empty()) throw Refused{std::move(why)};
  if (is_history(node)) throw Refused{"history from before the capture"};
  if (lacks_derivative(node)) throw Refused{"an operator that takes a size that varies, or has no derivative"};
  if (!has_interpreted_hooks_alone(node)) throw Refused{"a hook on a gradient inside: " + node.name()};
}

/// What the gradient of one root passes on its way.
struct Way {
  std::set<EdgeKey> ends;   // leaves, and roots at which it stops
  std::set<EdgeKey> roots;  // others that it passes
  std::unordered_set<const Node*> nodes;
  std::unordered_set<const Node*> takes_none;
  std::unordered_set<const Node*> hooked;
};

/// Where ways go.
struct Map {
  std::set<EdgeKey> ends;
  std::set<const Node*> end_nodes;
  std::set<EdgeKey> roots;
  std::set<const c10::TensorImpl*> kept;
  const WhyNot& why_not;
};

/// Looks at each node on the way, which does not go on behind `stops`, other roots.
Way way_from(const Edge& root, const Map& map, const std::set<EdgeKey>& stops) {
  Way way;
  std::vector<Edge> open = {root};
  while (!open.empty()) {
    const Edge edge = std::move(open.back());
    open.pop_back();
    if (!edge.is_valid()) continue;
    const EdgeKey key = key_of(edge);
    const bool other = key != key_of(root);
    if (map.ends.contains(key)) way.ends.insert(key);
    if (other && map.roots.contains(key)) way.roots.insert(key);
    if (other && stops.contains(key)) {
      way.ends.insert(key);
      continue;
    }
    if (map.end_nodes.contains(edge.function.get()) || !way.nodes.insert(edge.function.get()).second) continue;
    check(*edge.function, map.end_nodes, map.kept, map.why_not);
    if (takes_none(*edge.function)) way.takes_none.insert(edge.function.get());
    if (!edge.function->tensor_pre_hooks().empty()) way.hooked.insert(edge.function.get());
    for (const Edge& next : edge.function->next_edges()) open.push_back(next);
  }
  return way;
}

/// Those of the leaves to which the way leads.
std::vector<graph::ValueId> leaves_on(const Way& way, const std::vector<graph::ValueId>& leaves,
                                      const std::vector<Edge>& edges) {
  std::vector<graph::ValueId> found;
  for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    if (way.ends.contains(key_of(edges[leaf]))) found.push_back(leaves[leaf]);
  }
  return found;
}

using Sets = std::vector<std::vector<size_t>>;

/// Joins the sets that hold one of `members`.
void join(Sets& sets, const std::vector<size_t>& members) {
  std::vector<size_t> joined;
  std::erase_if(sets, [&](const std::vector<size_t>& set) {
    const bool holds = std::ranges::any_of(set, [&](size_t root) { return std::ranges::count(members, root) > 0; });
    if (holds) joined.insert(joined.end(), set.begin(), set.end());
    return holds;
  });
  std::ranges::sort(joined);
  sets.push_back(std::move(joined));
}

Sets one_each(const std::vector<size_t>& roots) {
  Sets sets;
  for (const size_t root : roots) sets.push_back({root});
  return sets;
}

/// Roots whose gradients pass the same nodes.
Sets related(const std::vector<Way>& ways) {
  std::vector<size_t> roots(ways.size());
  std::iota(roots.begin(), roots.end(), 0);
  Sets sets = one_each(roots);
  std::unordered_map<const Node*, size_t> first;
  for (const size_t root : roots) {
    std::set<size_t> met;
    for (const Node* node : ways[root].nodes) met.insert(first.try_emplace(node, root).first->second);
    met.erase(root);
    for (const size_t other : met) join(sets, {other, root});
  }
  std::ranges::sort(sets);
  return sets;
}

/// Each set's ways stop at roots of others, which in turn don't lead back to it.
bool has_order(const Sets& sets, const std::vector<Way>& ways, const std::vector<Edge>& roots) {
  std::map<EdgeKey, size_t> set_of;
  for (size_t i = 0; i < sets.size(); ++i) {
    for (const size_t root : sets[i]) set_of.emplace(key_of(roots[root]), i);
  }
  std::vector<int> state(sets.size(), 0);  // 1: being looked at, 2: in order
  const std::function<bool(size_t)> visit = [&](size_t i) {
    if (state[i] != 0) return state[i] == 2;
    state[i] = 1;
    for (const size_t root : sets[i]) {
      for (const EdgeKey& end : ways[root].ends) {
        const auto found = set_of.find(end);
        if (found != set_of.end() && end != key_of(roots[root]) && !visit(found->second)) return false;
      }
    }
    state[i] = 2;
    return true;
  };
  for (size_t i = 0; i < sets.size(); ++i) {
    if (!visit(i)) return false;
  }
  return true;
}

/// Ways that end at inner roots: results of which others consist, with nothing but them in between. Where the others'
/// ways pass nodes of theirs in other places too, they go on as before.
struct Ways {
  std::vector<Way> ways;
  Sets sets;
  std::set<EdgeKey> stops;
  std::vector<Way> through;  // where none stops

  /// `whole`: none ends so.
  Ways(const std::vector<Edge>& roots, const Map& map, bool whole) {
    through = from(roots, map);
    for (const Way& way : through) {
      if (!whole) stops.insert(way.roots.begin(), way.roots.end());
    }
    for (size_t before = 0; !stops.empty() && before != stops.size();) {
      before = stops.size();
      ways = from(roots, map);
      for (size_t inner = 0; inner < roots.size(); ++inner) {
        const EdgeKey key = key_of(roots[inner]);
        const auto meets = [&](const Way& way) {
          return way.ends.contains(key) &&
                 std::ranges::any_of(way.nodes, [&](const Node* node) { return through[inner].nodes.contains(node); });
        };
        if (stops.contains(key) && std::ranges::any_of(ways, meets)) stops.erase(key);
      }
    }
    sets = related(ways);
    if (stops.empty() || !has_order(sets, ways, roots)) {
      stops.clear();
      ways = through;
      sets = related(ways);
    }
  }

 private:
  std::vector<Way> from(const std::vector<Edge>& roots, const Map& map) const {
    std::vector<Way> found;
    for (const Edge& root : roots) found.push_back(way_from(root, map, stops));
    return found;
  }
};

/// Nodes of that kind that two of the roots lead to. Backwards that are given None where there is no gradient, and
/// hooks: they are one call, or two.
std::vector<const Node*> shared_nodes(const std::vector<Way>& ways, const std::vector<size_t>& roots,
                                      std::unordered_set<const Node*> Way::* kind) {
  std::unordered_set<const Node*> met;
  std::vector<const Node*> shared;
  for (const size_t root : roots) {
    for (const Node* node : ways[root].*kind) {
      if (!met.insert(node).second) shared.push_back(node);
    }
  }
  return shared;
}

}  // namespace

/// Of roots whose gradients pass the same nodes, those that need to be computed at once: an operator reads what is kept
/// of the forward for the gradients of both. Eager frees that with the first `backward()`; what two roots share
/// without it can be passed a second time, from the other root.
Sets JointTrace::sharing(const Group& group) const {
  Sets sets = one_each(group.roots);
  std::unordered_map<graph::ValueId, std::set<size_t>> from;  // by value of the backward
  for (size_t i = 0; i < group.roots.size(); ++i) from[group.tangents[i]] = {group.roots[i]};
  for (size_t i = group.begin; i < group.end; ++i) {
    const graph::AtenNode& node = graph_->aten_nodes[i];
    std::set<size_t> roots;
    bool reads_forward = false;
    graph::for_each_operand(node, [&](graph::ValueId id) {
      if (const auto known = from.find(id); known != from.end()) {
        roots.insert(known->second.begin(), known->second.end());
      } else {
        reads_forward |= graph_->values[id].kind != graph::ValueKind::Constant;
      }
    });
    if (reads_forward && roots.size() > 1) join(sets, {roots.begin(), roots.end()});
    for (const graph::ValueId id : node.results) {
      if (id != graph::kNoValue) from[id].insert(roots.begin(), roots.end());
    }
  }
  std::ranges::sort(sets);
  return sets;
}

/// `own`: roots that are traced here, or with these.
JointTrace::Group JointTrace::trace_group(std::vector<size_t> roots, const std::vector<size_t>& own,
                                          const torch::autograd::edge_list& ends) {
  StoppedNodes stopped;
  torch::autograd::edge_list leaves;
  for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
    const std::optional<size_t> root = leaves_[leaf].root;
    if (root && std::ranges::count(own, *root)) continue;
    leaves.push_back(ends[leaf]);
    if (root) stopped.add(*ends[leaf].function);
  }
  Group group{.roots = std::move(roots), .begin = graph_->aten_nodes.size()};
  torch::autograd::variable_list tangents;
  torch::autograd::edge_list edges;
  for (const size_t root : group.roots) {
    tangents.push_back(session_->make_tangent(fake_of_root(root), "tangents_" + std::to_string(root + 1)));
    group.tangents.push_back(session_->value_of(tangents.back()));
    edges.push_back(torch::autograd::impl::gradient_edge(fake_of_root(root)));
  }
  torch::autograd::variable_list gradients = [&] {
    const fake::TakesSparseGradients takes_sparse;
    return run_engine(*session_, edges, tangents, leaves);
  }();
  if (session_->refused()) throw Refused{};
  size_t next = 0;
  for (const Leaf& leaf : leaves_) {
    group.placements.push_back(nullptr);
    at::Tensor gradient = leaf.root && std::ranges::count(own, *leaf.root) ? at::Tensor() : gradients[next++];
    if (gradient.defined() && fake::is_jagged(gradient)) gradient = at::_nested_get_values(gradient);
    const auto input = std::ranges::find(results_.distributed, leaf.input, [](const auto& each) { return each.first; });
    if (gradient.defined() && input != results_.distributed.end()) {
      LocalGradient local = local_gradient(gradient, input->second);
      if (local.tensor.defined()) gradient = std::move(local.tensor);
      group.placements.back() = local.placements;
    }
    group.gradients.push_back(gradient.defined() ? session_->value_of(gradient) : graph::kNoValue);
    if (gradient.defined() && group.gradients.back() == graph::kNoValue) {
      if (is_dtensor(gradient)) throw Refused{"the gradient of an input lies otherwise: " + placements_of(gradient)};
      throw Refused{"the gradient of an input is of a class of tensors"};
    }
  }
  if (std::string why = fake::reads_sparse_gradient(*graph_, group.begin); !why.empty()) throw Refused{std::move(why)};
  group.end = graph_->aten_nodes.size();
  for (size_t i = group.begin; i < group.end; ++i) graph_->aten_nodes[i].torch_node = -1;  // of interpreted backwards
  return group;
}

void JointTrace::check_groups() const {
  const std::set<graph::ValueId> changed = graph::changed_in_place(*graph_);
  for (const Group& group : groups_) {
    for (size_t i = group.begin; i < group.end && !changed.empty(); ++i) {
      graph::for_each_operand(graph_->aten_nodes[i], [&](graph::ValueId id) {
        if (changed.contains(id)) throw Refused{"an in-place operator changes the sizes of a tensor that is saved"};
      });
    }
    const auto none = [](graph::ValueId id) { return id == graph::kNoValue; };
    if (std::ranges::all_of(group.gradients, none)) throw Refused{"a result leads to no input's gradient"};
  }
}

std::string JointTrace::error_of(size_t root, const torch::autograd::edge_list& ends) {
  if (ends.empty()) return {};
  const fake::Session::Mark before = session_->mark();
  const at::Tensor& fake = results_.fake_of_root(root);
  const fake::TakesSparseGradients takes_sparse;
  std::string found;
  try {
    run_engine(*session_, {torch::autograd::impl::gradient_edge(fake)}, {session_->make_tangent(fake, "tangent")},
               ends);
  } catch (const std::exception& error) {  // python_error among them
    PyErr_Clear();
    const std::string_view text = error.what();
    constexpr std::string_view written =
        "one of the variables needed for gradient computation has been modified by an inplace operation";
    if (text.find(torch::autograd::ERR_BACKWARD_TWICE) != std::string_view::npos) {
      found = torch::autograd::ERR_BACKWARD_TWICE;
    } else if (text.find(written) != std::string_view::npos) {
      found = std::string(written) + ", in a compiled function, behind its backward()";
    }
    drop_leftover_tasks();
  }
  session_->take_refusal();
  session_->rollback(before);
  if (!found.empty() && root >= results_.computed.size()) {
    throw Refused{"an input is written by what a gradient has passed"};
  }
  return found;
}

void for_each_input(const Joint& joint, const std::function<void(graph::ValueId)>& visit) {
  for (const Results::Freed& freed : joint.results.freed) std::ranges::for_each(freed.leaves, visit);
  for (const Backward& backward : joint.backwards) {
    for (const graph::ValueId id : backward.saved) visit(id);
    for (const Backward::Leaf& leaf : backward.leaves) {
      if (!leaf.root) visit(leaf.input);
    }
  }
  if (!joint.whole) return;
  const graph::Graph& whole = joint.whole->graph;
  const std::set<graph::ValueId> given(whole.inputs.begin(), whole.inputs.end() - joint.whole->tangents());
  const auto visit_forward = [&](graph::ValueId id) {
    if (given.contains(id)) visit(id);
  };
  for (const graph::AtenNode& node : whole.aten_nodes) graph::for_each_operand(node, visit_forward);
  for (const Backward::Leaf& leaf : joint.whole->leaves) visit(leaf.input);
}

std::optional<JointTrace> JointTrace::run(fake::Session& session, graph::Graph& graph, Results results,
                                          const std::vector<graph::ValueId>& leaves,
                                          const torch::autograd::edge_list& leaf_edges, bool whole,
                                          const WhyNot& why_not, NoJoint* refusal) {
  JointTrace trace(session, graph, std::move(results));
  const auto refuse = [&](std::string why) {
    if (const auto refused = session.take_refusal()) why = refused->op + ": " + refused->message;
    session.rollback(trace.forward_);
    refusal->why = std::move(why);
    return std::nullopt;
  };
  try {
    Map map{.why_not = why_not};
    for (const Edge& edge : leaf_edges) {
      map.ends.insert(key_of(edge));
      map.end_nodes.insert(edge.function.get());
    }
    for (const auto& computed : trace.results_.computed) map.kept.insert(computed.fake.unsafeGetTensorImpl());
    torch::autograd::edge_list roots, ends = leaf_edges;
    for (size_t i = 0; i < trace.results_.roots(); ++i) {
      const at::Tensor& root = trace.results_.fake_of_root(i);
      if (!root.requires_grad()) continue;
      const Edge edge = torch::autograd::impl::gradient_edge(root);
      if (trace.results_.frees) {
        const Way way = way_from(edge, map, {});
        if (const std::string error = trace.error_of(i, leaf_edges); !error.empty()) {
          trace.results_.freed.push_back({i, error, leaves_on(way, leaves, leaf_edges)});
          continue;
        }
      }
      roots.push_back(edge);
      trace.roots_.push_back(i);
      // What is handed out as another tensor has hooks of its own, and those of the segment are in the graph.
      const bool handed_out =
          i < trace.results_.computed.size() && !trace.results_.computed[i].is_base && !fake::is_jagged(root);
      if (handed_out && roots.back().function->tensor_pre_hooks().empty()) map.roots.insert(key_of(roots.back()));
    }
    const Ways found(roots, map, whole);
    const std::vector<Way>& ways = found.ways;
    for (const graph::ValueId leaf : leaves) trace.leaves_.push_back({leaf, {}});
    for (size_t i = 0; i < roots.size(); ++i) {
      if (!found.stops.contains(key_of(roots[i]))) {
        for (size_t outer = 0; outer < roots.size(); ++outer) {
          if (found.through[outer].roots.contains(key_of(roots[i]))) trace.inside_.emplace(i, outer);
        }
        continue;
      }
      trace.leaves_.push_back({graph::kNoValue, i});
      ends.push_back(roots[i]);
    }
    for (const Way& way : ways) {
      trace.results_.with_none |= !way.takes_none.empty();
      if (trace.results_.with_none && trace.results_.of_classes) {
        return refuse("a custom autograd.Function takes None for gradients (set_materialize_grads)");
      }
      std::vector<bool>& reaches = trace.reaches_.emplace_back();
      for (const Edge& end : ends) reaches.push_back(way.ends.contains(key_of(end)));
    }
    if (leaf_edges.empty() && !roots.empty()) return refuse("no input requires gradients, though a result does");
    const size_t data_sizes = graph.symbols_of(graph::ValueKind::Result).size();
    for (const std::vector<size_t>& set : found.sets) {
      const fake::Session::Mark before = session.mark();
      const std::vector<const Node*> shared = shared_nodes(ways, set, &Way::takes_none);
      const bool shares_hooks = !shared_nodes(ways, set, &Way::hooked).empty();
      Group group = trace.trace_group(set, set, ends);
      const Sets parts = trace.sharing(group);
      // Eager can't call one that has saved tensors a second time.
      if (parts.size() == 1 ||
          (!shared.empty() && std::ranges::all_of(shared, [](const Node* node) { return saves_tensors(*node); }))) {
        trace.groups_.push_back(std::move(group));
        continue;
      }
      if (std::ranges::any_of(shared, [](const Node* node) { return !saves_tensors(*node); })) {
        throw Refused{
            "several results of a custom autograd.Function that takes None for gradients "
            "(set_materialize_grads)"};
      }
      if (shares_hooks) throw Refused{"a hook on a gradient that comes from several results"};
      session.rollback(before);
      for (const auto& part : parts) trace.groups_.push_back(trace.trace_group(part, set, ends));
    }
    if (graph.symbols_of(graph::ValueKind::Result).size() != data_sizes) {
      refusal->numbers = read_numbers(graph, trace.forward_.aten_nodes);
      return refuse("its backward has sizes or numbers that depend on data");
    }
    if (refusal->hooked = trace.hidden_hook(); refusal->hooked != graph::kNoValue) {
      return refuse("a hook on a gradient is given only a part of it");
    }
    if (trace.adds_sparse()) return refuse("sparse gradients of one weight from several results");
    trace.check_groups();
  } catch (const Refused& refused) {
    return refuse(refused.why);
  } catch (const std::exception& error) {  // python_error among them, whose destructor needs the GIL that we hold
    PyErr_Clear();
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    return refuse(torch_error ? torch_error->what_without_backtrace() : error.what());
  }
  return trace;
}

namespace {

/// Where `id` stands among the graph's outputs.
int32_t output_position(graph::Graph& graph, graph::ValueId id) {
  const auto known = std::ranges::find(graph.outputs, id);
  const auto position = static_cast<int32_t>(known - graph.outputs.begin());
  if (known == graph.outputs.end()) graph.outputs.push_back(id);
  return position;
}

graph::ValueId add_sum(graph::Graph& graph, graph::ValueId a, graph::ValueId b) {
  static const auto add = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  const graph::ValueId sum = graph.add_result(graph.values[a].meta, static_cast<int32_t>(graph.aten_nodes.size()));
  graph.aten_nodes.push_back({.op = add, .args = {a, b, c10::IValue(1)}, .results = {sum}});
  return sum;
}

}  // namespace

/// The groups' backwards are one here: where several lead to a leaf, their gradients are added.
WholeJoint JointTrace::take_whole(const PartitionWay& way) const {
  WholeJoint whole{.graph = *graph_, .roots = {}, .leaves = {}, .way = way};
  graph::Graph& graph = whole.graph;
  graph.inputs.resize(forward_.inputs);
  graph.outputs.clear();
  for (const Results::Computed& computed : results_.computed) graph.outputs.push_back(computed.value);
  torch::autograd::variable_list fakes;
  std::map<size_t, size_t> position;  // by position in roots_
  for (const Group& group : groups_) {
    graph.inputs.insert(graph.inputs.end(), group.tangents.begin(), group.tangents.end());
    for (const size_t root : group.roots) {
      position[root] = whole.roots.size();
      whole.roots.push_back(roots_[root]);
      fakes.push_back(fake_of_root(root));
    }
  }
  whole.nodes = nodes_by_age(fakes);
  for (const auto& [inner, outer] : inside_) whole.inside.emplace_back(position[inner], position[outer]);
  for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
    graph::ValueId gradient = graph::kNoValue;
    Backward::Leaf made{.input = leaves_[leaf].input};
    for (const Group& group : groups_) {
      for (const size_t root : group.roots) made.reached_from.push_back(reaches_[root][leaf]);
      const graph::ValueId part = group.gradients[leaf];
      if (part == graph::kNoValue) continue;
      gradient = gradient == graph::kNoValue ? part : add_sum(graph, gradient, part);
    }
    if (gradient == graph::kNoValue) continue;
    made.gradient = output_position(graph, gradient);
    whole.leaves.push_back(std::move(made));
  }
  separate_gradients(graph, results_.computed.size());
  return whole;
}

/// A group to whose roots others lead stands in front of these; else, one that eager has computed before others: of two
/// nodes autograd's engine calls the younger first, and so hooks.
std::vector<const JointTrace::Group*> JointTrace::inner_first() const {
  std::vector<const Group*> order, by_age;
  for (const Group& group : groups_) by_age.push_back(&group);
  std::ranges::stable_sort(by_age, {}, [&](const Group* group) {
    return torch::autograd::impl::gradient_edge(fake_of_root(group->roots.back())).function->sequence_nr();
  });
  const auto is_placed = [&](size_t root) {
    return std::ranges::any_of(order, [&](const Group* group) { return std::ranges::count(group->roots, root) > 0; });
  };
  while (order.size() < groups_.size()) {
    for (const Group* group : by_age) {
      bool ready = !std::ranges::count(order, group);
      for (size_t leaf = 0; leaf < leaves_.size() && ready; ++leaf) {
        ready = !leaves_[leaf].root || group->gradients[leaf] == graph::kNoValue || is_placed(*leaves_[leaf].root);
      }
      if (ready) order.push_back(group);
    }
  }
  return order;
}

Joint JointTrace::take(const PartitionWay& way) {
  Joint joint;
  if (way.whole) joint.whole = std::make_shared<const WholeJoint>(take_whole(way));
  for (const Group* const each : inner_first()) {
    if (way.whole) break;
    const Group& group = *each;
    Backward& backward = joint.backwards.emplace_back();
    std::vector<graph::ValueId> gradients;
    for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
      if (group.gradients[leaf] == graph::kNoValue) continue;
      gradients.push_back(group.gradients[leaf]);
      const std::optional<size_t> root = leaves_[leaf].root;
      backward.leaves.push_back({.input = leaves_[leaf].input, .root = root ? std::optional(roots_[*root]) : root});
      backward.leaves.back().placements = group.placements[leaf];
      for (const size_t root : group.roots) backward.leaves.back().reached_from.push_back(reaches_[root][leaf]);
    }
    torch::autograd::variable_list fakes;
    for (size_t i = 0; i < group.roots.size(); ++i) {
      backward.roots.push_back(roots_[group.roots[i]]);
      fakes.push_back(fake_of_root(group.roots[i]));
      for (size_t k = 0; k < group.roots.size(); ++k) {
        if (inside_.contains({group.roots[i], group.roots[k]})) backward.inside.emplace_back(i, k);
      }
    }
    backward.nodes = nodes_by_age(fakes);
    split(*graph_, {forward_.aten_nodes, group.begin, group.end}, group.tangents, gradients, way, backward);
  }
  session_->rollback(forward_);
  results_.forget_fakes();
  joint.results = std::move(results_);
  return joint;
}

}  // namespace magneto::autograd
