// Compilers that users wrote for the forward and the backward of a graph (aot_autograd, magneto/_aot.py): each gets a
// torch.fx.GraphModule of ATen operators without writes, in the form that AOTAutograd's users know.
//
//     forward    primals_1, primals_2, ...                   -> new contents of inputs, results, what is saved
//     backward   what is saved, tangents_1, tangents_2, ...  -> a gradient, or None, for each of the primals
//     inference  arg0_1, arg1_1, ...                         -> new contents of inputs, results
//
// Where sizes are dynamic, their numbers stand first among the inputs, and last among what is saved.
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "compiler/forward_first.h"
#include "compiler/pipeline.h"
#include "graph/aliases.h"
#include "graph/gm.h"
#include "graph/operator_calls.h"
#include "graph/symbols.h"
#include "passes/passes.h"
#include "python/text.h"
#include "runtime/joint_computation.h"
#include "runtime/result_views.h"
#include "runtime/user_half.h"
#include "support/tensor_object.h"

namespace magneto::compiler {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::ValueId;
using graph::ValueKind;
using observe::Events;
using observe::Observer;
using passes::Functional;
using runtime::UserHalf;

Functional functional_of(Graph graph) {
  Functional functional = passes::functionalise(std::move(graph));
  passes::eliminate_dead(functional);
  return functional;
}

size_t position(const std::vector<ValueId>& ids, ValueId id) {
  return static_cast<size_t>(std::ranges::find(ids, id) - ids.begin());
}

/// primals_3 or arg2_1.
std::string input_name(bool trains, size_t number) {
  return trains ? "primals_" + std::to_string(number + 1) : "arg" + std::to_string(number) + "_1";
}

/// Names the first `count` inputs, behind those of the symbols, whose names it gives.
std::vector<std::string> name_inputs(Graph& graph, size_t count, bool trains) {
  std::vector<std::string> symbols;
  for (size_t i = 0; i < graph.symbols_of(ValueKind::Input).size(); ++i) symbols.push_back(input_name(trains, i));
  for (size_t i = 0; i < count; ++i) {
    graph.values[graph.inputs[i]].name = input_name(trains, symbols.size() + i);
  }
  return symbols;
}

/// The graph with these operators gone from its end, and these outputs.
Graph front_of(const Graph& whole, size_t operators, const std::vector<ValueId>& returned) {
  Graph graph = whole;
  graph.aten_nodes.erase(graph.aten_nodes.begin() + static_cast<std::ptrdiff_t>(operators), graph.aten_nodes.end());
  graph.outputs.clear();
  for (const ValueId id : returned) {
    if (id != kNoValue && !std::ranges::count(graph.outputs, id)) graph.outputs.push_back(id);
  }
  return graph;
}

/// A tensor of that form, whose contents don't matter: memory that nobody touches costs nothing.
at::Tensor example_of(const graph::TensorMeta& meta) {
  const at::TensorOptions options = at::TensorOptions(meta.dtype).device(meta.device);
  at::Tensor tensor = at::empty_strided(meta.sizes, meta.strides, options);
  if (!c10::isFloatingType(meta.dtype)) tensor.zero_();  // indices
  return tensor;
}

/// The Python object that holds the user's compilers, for one graph.
class Users {
 public:
  explicit Users(const Request& request) : request_(request) {}

  Ref module(const Graph& graph, const graph::OperatorForm& form) const {
    try {
      return graph::operator_module(graph::with_operators_as_calls(graph), form);
    } catch (const std::invalid_argument& error) {
      throw passes::Unsupported(error.what());
    }
  }

  /// What the compiler of that half makes of it.
  UserHalf compile(const char* half, const Ref& module, const Ref& examples) const {
    const Ref place = text_object(request_.place);
    const Ref made = checked(
        PyObject_CallMethod(request_.callable, "compile", "sOOO", half, module.get(), examples.get(), place.get()));
    UserHalf compiled;
    compiled.callable = Ref::borrow(PyTuple_GET_ITEM(made.get(), 0));
    compiled.name = text_argument(PyTuple_GET_ITEM(made.get(), 1));
    compiled.boxed = PyTuple_GET_ITEM(made.get(), 2) == Py_True;
    return compiled;
  }

  bool is_set(const char* name) const {
    return checked(PyObject_GetAttrString(request_.callable, name)).get() == Py_True;
  }

  /// Numbers of the symbols, then the inputs of the run that is captured.
  Ref inputs() const {
    Ref list = numbers(request_.graph);
    for (const Ref& input : request_.inputs) append(list, tensor_object(unpack_tensor(input.get()).detach()));
    return list;
  }

  Ref examples(const Graph& graph) const {
    Ref list = numbers(graph);
    for (const ValueId id : graph.inputs) append(list, tensor_object(example_of(graph.values[id].meta)));
    return list;
  }

 private:
  Ref numbers(const Graph& graph) const {
    Ref list = checked(PyList_New(0));
    const graph::SymbolValues values = captured_sizes(request_);
    for (const graph::SymbolBinding& symbol : graph.symbols_of(ValueKind::Input)) {
      append(list, PyLong_FromLongLong(values(shapes::Expr::symbol(symbol.symbol))));
    }
    return list;
  }
  static void append(const Ref& list, PyObject* owned) {
    if (PyList_Append(list.get(), checked(owned).get()) < 0) throw PythonError{};
  }

  const Request& request_;
};

int32_t versions_of(const Functional& functional, ValueId id) {
  const auto bump = std::ranges::find(functional.bumps, id, &Functional::Bump::value);
  return bump == functional.bumps.end() ? 0 : bump->count;
}

// -- no gradients

/// What the operators compute, and which results are views that are made again of that.
autograd::Results results_of(const Graph& graph) {
  autograd::Results results;
  std::vector<autograd::Results::Output> ways;
  for (const ValueId output : graph.outputs) {
    autograd::Results::Output& way = ways.emplace_back();
    way.base = output;
    way.with_grad = c10::GradMode::is_enabled();
    while (graph.values[way.base].producer >= 0) {
      const auto producer = static_cast<size_t>(graph.values[way.base].producer);
      const graph::AtenNode& node = graph.aten_nodes[producer];
      if (!graph::effects_of(node.op).aliases || !std::holds_alternative<ValueId>(node.args[0])) break;
      way.views.insert(way.views.begin(), producer);
      way.base = std::get<ValueId>(node.args[0]);
    }
  }
  for (size_t i = 0; i < ways.size(); ++i) {
    autograd::Results::Output way = ways[i];
    const bool of_input = graph.values[way.base].kind == ValueKind::Input;
    if (!of_input && std::ranges::count(ways, way.base, &autograd::Results::Output::base) == 1) {
      way = {.base = graph.outputs[i]};  // no other shares its memory
    }
    if (!of_input && !std::ranges::count(results.computed, way.base, &autograd::Results::Computed::value)) {
      results.computed.push_back({.value = way.base, .fake = {}, .output = i, .is_base = way.base != graph.outputs[i]});
    }
    results.outputs.push_back(std::move(way));
  }
  return results;
}

/// The user's callable, and the results that are views.
class WithViews final : public runtime::TensorComputation {
 public:
  WithViews(std::unique_ptr<TensorComputation> computed, runtime::ResultViews views, size_t outputs)
      : computed_(std::move(computed)), views_(std::move(views)), outputs_(outputs) {}
  void compute(const at::Tensor* const* inputs, at::Tensor* outputs) const override {
    std::vector<at::Tensor> results(computed_->output_count());
    computed_->compute(inputs, results.data());
    views_.make(inputs, results.data(), outputs);
  }
  size_t input_count() const override { return computed_->input_count(); }
  size_t output_count() const override { return outputs_; }
  std::string print() const override { return computed_->print(); }
  runtime::OnError on_error() const override { return computed_->on_error(); }
  bool is_users() const override { return true; }

 private:
  std::unique_ptr<TensorComputation> computed_;
  runtime::ResultViews views_;
  size_t outputs_;
};

/// Writes of inputs become operators at the graph's end.
void add_copies(Functional& functional) {
  static const auto copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  Graph& graph = functional.graph;
  for (const Functional::Write& write : functional.writes) {
    graph.aten_nodes.push_back(
        {.op = copy, .args = {write.input, write.value, c10::IValue(false)}, .results = {write.input}});
  }
}

std::unique_ptr<runtime::Computation> compile_inference(const Request& request, Functional functional) {
  const Users users(request);
  Graph& graph = functional.graph;
  const autograd::Results results = results_of(graph);
  const runtime::ResultViews views(graph, results);
  const bool copies = users.is_set("keep_inference_input_mutations");
  if (copies) add_copies(functional);
  graph::OperatorForm form;
  std::vector<UserHalf::Write> writes;
  for (const Functional::Write& write : functional.writes) {
    const int32_t versions = versions_of(functional, write.input);
    const auto result = copies ? -1 : static_cast<int32_t>(form.returned.size());
    writes.push_back({position(graph.inputs, write.input), result, copies ? std::max(versions - 1, 0) : versions});
    if (!copies) form.returned.push_back(write.value);
  }
  std::vector<int32_t> outputs, versions;
  for (const autograd::Results::Computed& computed : results.computed) {
    outputs.push_back(static_cast<int32_t>(form.returned.size()));
    versions.push_back(versions_of(functional, computed.value));
    form.returned.push_back(computed.value);
  }
  form.symbols = name_inputs(graph, graph.inputs.size(), /*trains=*/false);
  const Graph made = front_of(graph, graph.aten_nodes.size(), form.returned);
  UserHalf half = users.compile("inference", users.module(made, form), users.inputs());
  half.returned = form.returned.size();
  half.writes = std::move(writes);
  half.first_saved = outputs.size();
  half.outputs = std::move(outputs);
  half.versions = std::move(versions);
  return std::make_unique<WithViews>(runtime::make_user_computation(std::move(half), graph), views,
                                     graph.outputs.size());
}

// -- gradients

/// Forward and backward without writes, the forward's operators first.
class JointHalves {
 public:
  JointHalves(const Request& request, Events& events)
      : request_(request), events_(events), users_(request), whole_(*request.joint->whole) {
    Graph captured = whole_.graph;
    const auto last = captured.inputs.end() - whole_.tangents();
    const std::vector<ValueId> tangents(last, captured.inputs.end());
    captured.inputs = request.graph.inputs;
    captured.inputs.insert(captured.inputs.end(), tangents.begin(), tangents.end());
    functional_ = functional_of(std::move(captured));
    Graph& joint = functional_.graph;
    inputs_ = request.graph.inputs.size();
    tangents_.assign(joint.inputs.begin() + static_cast<std::ptrdiff_t>(inputs_), joint.inputs.end());
    for (size_t i = 0; i < tangents_.size(); ++i) joint.values[tangents_[i]].name = "tangents_" + std::to_string(i + 1);
    symbols_ = name_inputs(joint, inputs_, /*trains=*/true);
    for (const Functional::Write& write : functional_.writes) returned_.push_back(write.value);
    computed_ = request.joint->results.computed.size();
    for (size_t i = 0; i < computed_; ++i) returned_.push_back(joint.outputs[i]);
    for (const autograd::Backward::Leaf& leaf : whole_.leaves) {
      gradients_.push_back(joint.outputs[static_cast<size_t>(leaf.gradient)]);
    }
    forward_ = put_forward_first(joint, returned_, tangents_);
  }

  std::unique_ptr<runtime::Computation> compile() {
    autograd::Backward backward = cut();
    events_.tell(&Observer::graph_compile, {"FORWARDS", /*is_done=*/false});
    TensorComputation forward = compile_forward(backward);
    events_.tell(&Observer::graph_compile, {"FORWARDS", /*is_done=*/true});
    events_.tell(&Observer::graph_compile, {"BACKWARDS", /*is_done=*/false});
    std::vector<TensorComputation> backwards;
    backwards.push_back(compile_backward(backward));
    events_.tell(&Observer::graph_compile, {"BACKWARDS", /*is_done=*/true});
    return with_ties(std::move(backward), std::move(forward), std::move(backwards));
  }

 private:
  using TensorComputation = std::unique_ptr<runtime::TensorComputation>;

  /// By our own partition. What the forward replaces is not read again from where it was.
  autograd::Backward cut() const {
    autograd::PartitionWay way = {.recompute = request_.backend.partition == Backend::Partition::MinCut};
    autograd::Backward backward = cut(way);
    const auto replaced = [&](ValueId id) {
      return std::ranges::count(functional_.writes, id, &Functional::Write::input) > 0;
    };
    if (way.recompute && std::ranges::any_of(backward.saved, replaced)) return cut({});
    return backward;
  }

  autograd::Backward cut(const autograd::PartitionWay& way) const {
    Graph joint = functional_.graph;
    joint.outputs.resize(computed_);
    autograd::Backward backward;
    backward.roots = whole_.roots;
    backward.leaves = whole_.leaves;
    autograd::split(joint, {forward_, forward_, joint.aten_nodes.size()}, tangents_, gradients_, way, backward);
    return backward;
  }

  /// Also gives what is saved the names that the forward has for it.
  TensorComputation compile_forward(autograd::Backward& backward) const {
    graph::OperatorForm form{.returned = returned_, .symbols = symbols_};
    form.returned.insert(form.returned.end(), backward.saved.begin(), backward.saved.end() - reread(backward));
    form.returns_symbols = !backward.graph.symbols.empty();
    Graph graph = front_of(functional_.graph, forward_, form.returned);
    graph.inputs.resize(inputs_);
    const Ref module = users_.module(graph, form);
    const std::vector<std::string> names = graph::returned_names(module);
    for (size_t i = 0; i < backward.saved.size(); ++i) {
      const bool again = i >= backward.saved.size() - backward.reread;
      backward.graph.values[backward.graph.inputs[i]].name =
          again ? functional_.graph.values[backward.saved[i]].name : names.at(returned_.size() + i);
    }
    events_.tell(&Observer::joint_graph, {request_.place, graph, shown(backward)});
    UserHalf half = users_.compile("forward", module, users_.inputs());
    half.returned = names.size();
    add_writes(half);
    for (size_t i = 0; i < computed_; ++i) {
      half.outputs.push_back(static_cast<int32_t>(functional_.writes.size() + i));
      half.versions.push_back(versions_of(functional_, functional_.graph.outputs[i]));
    }
    half.first_saved = computed_;
    for (size_t i = 0; i + backward.reread < backward.saved.size(); ++i) {
      const auto write = std::ranges::find(functional_.writes, backward.saved[i], &Functional::Write::value);
      const bool is_new = write != functional_.writes.end();
      half.outputs.push_back(static_cast<int32_t>(is_new ? write - functional_.writes.begin()
                                                         : static_cast<std::ptrdiff_t>(returned_.size() + i)));
    }
    return runtime::make_user_computation(std::move(half), graph);
  }

  void add_writes(UserHalf& half) const {
    for (const Functional::Write& write : functional_.writes) {
      half.writes.push_back({position(functional_.graph.inputs, write.input), static_cast<int32_t>(half.writes.size()),
                             versions_of(functional_, write.input)});
    }
  }

  /// For people.
  autograd::Joint shown(const autograd::Backward& backward) const {
    autograd::Joint joint;
    joint.backwards.push_back(backward);
    return joint;
  }

  static std::ptrdiff_t reread(const autograd::Backward& backward) {
    return static_cast<std::ptrdiff_t>(backward.reread);
  }

  TensorComputation compile_backward(autograd::Backward& backward) const {
    const Graph& graph = backward.graph;
    graph::OperatorForm form{.returned = std::vector<ValueId>(symbols_.size() + inputs_, kNoValue)};
    std::vector<int32_t> outputs;
    for (size_t i = 0; i < backward.leaves.size(); ++i) {
      autograd::Backward::Leaf& leaf = backward.leaves[i];
      const size_t place = symbols_.size() + position(request_.graph.inputs, leaf.input);
      form.returned.at(place) = graph.outputs.at(static_cast<size_t>(leaf.gradient));
      outputs.push_back(static_cast<int32_t>(place));
      leaf.gradient = static_cast<int32_t>(i);
    }
    const auto symbols = request_.graph.symbols_of(ValueKind::Input);
    for (const graph::SymbolBinding& symbol : graph.symbols) {
      const auto known = std::ranges::find(symbols, symbol.symbol, &graph::SymbolBinding::symbol);
      form.symbols.push_back(symbols_.at(static_cast<size_t>(known - symbols.begin())));
    }
    UserHalf half = users_.compile("backward", users_.module(graph, form), users_.examples(graph));
    half.returned = form.returned.size();
    half.outputs = std::move(outputs);
    half.may_be_none = true;
    return runtime::make_user_computation(std::move(half), graph);
  }

  /// What is saved are results of their own for the runtime, whatever they are to the graph.
  std::unique_ptr<runtime::Computation> with_ties(autograd::Backward backward, TensorComputation forward,
                                                  std::vector<TensorComputation> backwards) {
    Graph graph = request_.graph;
    for (size_t i = 0; i < backward.saved.size(); ++i) {
      const ValueId id = backward.saved[i];
      backward.saved[i] = i + backward.reread < backward.saved.size()
                              ? graph.add_result(functional_.graph.values[id].meta, /*producer=*/-1)
                              : request_.graph.inputs[position(functional_.graph.inputs, id)];
    }
    autograd::Joint joint{.results = std::move(request_.joint->results), .backwards = {}, .whole = {}};
    joint.backwards.push_back(std::move(backward));
    return runtime::make_joint_computation(graph, std::move(joint), std::move(forward), std::move(backwards),
                                           runtime::make_torch_computation(request_.graph));
  }

  const Request& request_;
  Events& events_;
  const Users users_;
  const autograd::WholeJoint& whole_;
  Functional functional_;
  size_t inputs_ = 0, computed_ = 0, forward_ = 0;
  std::vector<ValueId> tangents_, returned_, gradients_;  // the forward returns; by leaf
  std::vector<std::string> symbols_;
};

}  // namespace

std::unique_ptr<runtime::Computation> compile_by_users(const Request& request, Events& events) {
  if (request.needs_grad && !request.joint) return without_joint(request, events);
  try {
    if (request.needs_grad) return JointHalves(request, events).compile();
    return compile_inference(request, functional_of(request.graph));
  } catch (const passes::Unsupported& refusal) {
    if (request.needs_grad) {
      events.tell(&Observer::no_joint_graph, {request.start, refusal.what()});
      return runtime::make_torch_computation(request.graph);
    }
    Compiled made{.computation = runtime::make_aten_computation(request.graph), .uncompiled = refusal.what()};
    events.tell(&Observer::program_made, {request.place, made, /*specialised=*/false});
    return std::move(made.computation);
  }
}

}  // namespace magneto::compiler
