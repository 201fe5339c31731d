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
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>

#include <algorithm>

#include "compiler/decompose.h"
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

/// What a partition of the program's own gives.
struct Parts {
  Ref forward, backward;
  /// Of the backward's inputs.
  Ref examples;
  std::vector<UserHalf::Given> saved;
};

/// The Python object that holds the user's compilers, for one graph.
class Users {
 public:
  explicit Users(const Request& request) : request_(request) {}

  Ref module(const Graph& graph, const graph::OperatorForm& form) const {
    for (const graph::AtenNode& node : graph.aten_nodes) {
      const auto is_region = [](const graph::AtenArg& arg) {
        return std::holds_alternative<std::shared_ptr<const graph::Region>>(arg);
      };
      if (std::ranges::any_of(node.args, is_region)) throw passes::Unsupported("torch.cond in a graph for compilers");
    }
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
  static Ref examples_of(const Graph& graph, const std::vector<ValueId>& ids) {
    Ref list = checked(PyList_New(0));
    for (const ValueId id : ids) append(list, tensor_object(example_of(graph.values[id].meta)));
    return list;
  }

  /// The joint graph in two, by a function of the program. `cut`: ours, for it to call.
  Parts partition(const Ref& joint, const Ref& tangents, size_t results, const pybind11::handle& cut) const {
    const Ref place = text_object(request_.place);
    const Ref made =
        checked(PyObject_CallMethod(request_.callable, "partition", "OOOnOO", joint.get(), inputs().get(),
                                    tangents.get(), static_cast<Py_ssize_t>(results), cut.ptr(), place.get()));
    const auto item = [&](Py_ssize_t i) { return Ref::borrow(PyTuple_GET_ITEM(made.get(), i)); };
    Parts parts{.forward = item(0), .backward = item(1), .examples = item(3), .saved = {}};
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(item(2).get()); ++i) {
      const bool is_number = PyList_GET_ITEM(item(2).get(), i) == Py_True;
      parts.saved.push_back(is_number ? UserHalf::Given::Number : UserHalf::Given::Tensor);
    }
    return parts;
  }

  Functional functional_of(Graph graph) const {
    Functional functional = passes::functionalise(std::move(graph));
    passes::eliminate_dead(functional);
    const Ref table = checked(PyObject_GetAttrString(request_.callable, "decompositions"));
    return PyDict_GET_SIZE(table.get()) ? decompose(std::move(functional), table.get()) : functional;
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
  results.add_places(graph);
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
    functional_ = users_.functional_of(std::move(captured));
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
    if (users_.is_set("partitions")) return compile_parts_of_user();
    Modules made = cut(request_.backend.partition);
    events_.tell(&Observer::joint_graph, {request_.place, made.forward_graph, shown(made.backward)});
    TensorComputation forward = compile_forward(made);
    std::vector<TensorComputation> backwards;
    backwards.push_back(compile_backward(made));
    return with_ties(std::move(made.backward), std::move(forward), std::move(backwards));
  }

 private:
  using TensorComputation = std::unique_ptr<runtime::TensorComputation>;

  /// The graph in two, by our own partition.
  struct Modules {
    autograd::Backward backward;
    Graph forward_graph;
    Ref forward, backward_module;
    /// Of what the forward returns.
    std::vector<std::string> names;
  };

  /// What the forward replaces is not read again from where it was. `rereads`: the backward may read inputs that are
  /// not among what the forward returns (`Backward::reread`).
  Modules cut(Backend::Partition partition, bool rereads = true) const {
    autograd::PartitionWay way = whole_.way;
    way.recompute = partition == Backend::Partition::MinCut;
    Modules made{.backward = split(way)};
    const auto replaced = [&](ValueId id) {
      return std::ranges::count(functional_.writes, id, &Functional::Write::input) > 0;
    };
    if (way.recompute && std::ranges::any_of(made.backward.saved, replaced)) {
      way.recompute = false;
      made.backward = split(way);
    }
    if (!rereads) made.backward.reread = 0;
    make_forward(made);
    make_backward(made);
    return made;
  }

  autograd::Backward split(const autograd::PartitionWay& way) const {
    Graph joint = functional_.graph;
    joint.outputs.resize(computed_);
    autograd::Backward backward;
    backward.roots = whole_.roots;
    backward.nodes = whole_.nodes;
    backward.inside = whole_.inside;
    backward.leaves = whole_.leaves;
    autograd::split(joint, {forward_, forward_, joint.aten_nodes.size()}, tangents_, gradients_, way, backward);
    return backward;
  }

  /// Also gives what is saved the names that the forward has for it.
  void make_forward(Modules& made) const {
    autograd::Backward& backward = made.backward;
    graph::OperatorForm form{.returned = returned_, .symbols = symbols_};
    const size_t kept = backward.saved.size() - backward.reread;
    form.returned.insert(form.returned.end(), backward.saved.begin(),
                         backward.saved.begin() + static_cast<std::ptrdiff_t>(kept));
    for (const graph::SymbolBinding& symbol : backward.graph.symbols) form.returned_symbols.push_back(symbol.symbol);
    made.forward_graph = front_of(functional_.graph, forward_, form.returned);
    made.forward_graph.inputs.resize(inputs_);
    made.forward = users_.module(made.forward_graph, form);
    made.names = graph::returned_names(made.forward);
    for (size_t i = 0; i < backward.saved.size(); ++i) {
      backward.graph.values[backward.graph.inputs[i]].name =
          i < kept ? made.names.at(returned_.size() + i) : functional_.graph.values[backward.saved[i]].name;
    }
  }

  void make_backward(Modules& made) const {
    const Graph& graph = made.backward.graph;
    graph::OperatorForm form{.returned = std::vector<ValueId>(symbols_.size() + inputs_, kNoValue)};
    for (const autograd::Backward::Leaf& leaf : made.backward.leaves) {
      form.returned.at(place_of(leaf)) = graph.outputs.at(static_cast<size_t>(leaf.gradient));
    }
    const auto symbols = request_.graph.symbols_of(ValueKind::Input);
    for (const graph::SymbolBinding& symbol : graph.symbols) {
      const auto known = std::ranges::find(symbols, symbol.symbol, &graph::SymbolBinding::symbol);
      form.symbols.push_back(symbols_.at(static_cast<size_t>(known - symbols.begin())));
    }
    made.backward_module = users_.module(graph, form);
  }

  /// Where the backward returns the gradient.
  size_t place_of(const autograd::Backward::Leaf& leaf) const {
    return symbols_.size() + position(request_.graph.inputs, leaf.input);
  }

  UserHalf compile_half(const char* half, const Ref& module, const Ref& examples) const {
    const char* direction = half == std::string("forward") ? "FORWARDS" : "BACKWARDS";
    events_.tell(&Observer::graph_compile, {direction, /*is_done=*/false});
    UserHalf made = users_.compile(half, module, examples);
    events_.tell(&Observer::graph_compile, {direction, /*is_done=*/true});
    return made;
  }

  TensorComputation compile_forward(const Modules& made) const {
    UserHalf half = compile_half("forward", made.forward, users_.inputs());
    half.returned = made.names.size();
    add_results(half);
    for (size_t i = 0; i + made.backward.reread < made.backward.saved.size(); ++i) {
      const auto write = std::ranges::find(functional_.writes, made.backward.saved[i], &Functional::Write::value);
      const bool is_new = write != functional_.writes.end();
      half.outputs.push_back(static_cast<int32_t>(is_new ? write - functional_.writes.begin()
                                                         : static_cast<std::ptrdiff_t>(returned_.size() + i)));
    }
    return runtime::make_user_computation(std::move(half), made.forward_graph);
  }

  void add_results(UserHalf& half) const {
    for (const Functional::Write& write : functional_.writes) {
      half.writes.push_back({position(functional_.graph.inputs, write.input), static_cast<int32_t>(half.writes.size()),
                             versions_of(functional_, write.input)});
    }
    for (size_t i = 0; i < computed_; ++i) {
      half.outputs.push_back(static_cast<int32_t>(functional_.writes.size() + i));
      half.versions.push_back(versions_of(functional_, functional_.graph.outputs[i]));
    }
    half.first_saved = computed_;
  }

  /// For people.
  autograd::Joint shown(const autograd::Backward& backward) const {
    autograd::Joint joint;
    joint.backwards.push_back(backward);
    return joint;
  }

  TensorComputation compile_backward(Modules& made) const {
    UserHalf half = compile_half("backward", made.backward_module, users_.examples(made.backward.graph));
    add_gradients(half, made.backward);
    return runtime::make_user_computation(std::move(half), made.backward.graph);
  }

  void add_gradients(UserHalf& half, autograd::Backward& backward) const {
    half.returned = symbols_.size() + inputs_;
    half.may_be_none = true;
    for (size_t i = 0; i < backward.leaves.size(); ++i) {
      half.outputs.push_back(static_cast<int32_t>(place_of(backward.leaves[i])));
      backward.leaves[i].gradient = static_cast<int32_t>(i);
    }
  }

  // -- by the user's partition

  /// What a function of the program made of the joint graph.
  std::unique_ptr<runtime::Computation> compile_parts_of_user() {
    graph::OperatorForm form{.returned = returned_, .symbols = symbols_};
    std::vector<ValueId> gradients(symbols_.size() + inputs_, kNoValue);
    for (size_t i = 0; i < gradients_.size(); ++i) gradients.at(place_of(whole_.leaves[i])) = gradients_[i];
    form.returned.insert(form.returned.end(), gradients.begin(), gradients.end());
    Graph joint = front_of(functional_.graph, functional_.graph.aten_nodes.size(), form.returned);
    const Ref tangents = users_.examples_of(functional_.graph, tangents_);
    // Our own partitions of this graph, for as long as the program's function runs.
    const auto ours = std::make_shared<const JointHalves*>(this);
    const pybind11::cpp_function cut_it([ours](bool min_cut) { return (*ours)->cut_for_user(min_cut); });
    const Parts parts = users_.partition(users_.module(joint, form), tangents, returned_.size(), cut_it);
    std::vector<TensorComputation> backwards;
    autograd::Backward backward = backward_of(parts);
    UserHalf forward = compile_half("forward", parts.forward, users_.inputs());
    forward.returned = returned_.size() + parts.saved.size();
    add_results(forward);
    for (size_t i = 0; i < parts.saved.size(); ++i) {
      forward.outputs.push_back(static_cast<int32_t>(returned_.size() + i));
    }
    forward.gives_symbols = true;
    UserHalf half = compile_half("backward", parts.backward, parts.examples);
    half.takes_symbols = false;
    half.given = parts.saved;
    half.given.resize(parts.saved.size() + symbols_.size(), UserHalf::Given::Not);
    add_gradients(half, backward);
    backwards.push_back(runtime::make_user_computation(std::move(half), backward.graph));
    Graph inputs = functional_.graph;
    inputs.inputs.resize(inputs_);
    return with_ties(std::move(backward), runtime::make_user_computation(std::move(forward), inputs),
                     std::move(backwards));
  }

  /// (forward, backward).
  pybind11::object cut_for_user(bool min_cut) const {
    try {
      const Modules made = cut(min_cut ? Backend::Partition::MinCut : Backend::Partition::AsEager, /*rereads=*/false);
      const Ref pair = checked(PyTuple_Pack(2, made.forward.get(), made.backward_module.get()));
      return pybind11::reinterpret_borrow<pybind11::object>(pair.get());
    } catch (const PythonError&) {
      throw pybind11::error_already_set();
    }
  }

  /// It is given what is saved, of which nothing is known, the numbers of the symbols in tensors, and the tangents.
  autograd::Backward backward_of(const Parts& parts) const {
    autograd::Backward backward;
    backward.roots = whole_.roots;
    backward.nodes = whole_.nodes;
    backward.inside = whole_.inside;
    backward.leaves = whole_.leaves;
    const auto add = [&](const graph::TensorMeta& meta) {
      backward.saved.push_back(kNoValue);
      return backward.graph.add_input({}, meta);
    };
    for (size_t i = 0; i < parts.saved.size(); ++i) add({});
    for (graph::SymbolBinding symbol : request_.graph.symbols_of(ValueKind::Input)) {
      symbol.value = add({.dtype = at::kLong});
      symbol.dim = -1;
      backward.graph.symbols.push_back(symbol);
    }
    for (const ValueId id : tangents_) backward.graph.add_input({}, functional_.graph.values[id].meta);
    return backward;
  }

  /// What is saved are results of their own for the runtime, whatever they are to the graph.
  std::unique_ptr<runtime::Computation> with_ties(autograd::Backward backward, TensorComputation forward,
                                                  std::vector<TensorComputation> backwards) {
    Graph graph = request_.graph;
    for (size_t i = 0; i < backward.saved.size(); ++i) {
      const ValueId id = backward.saved[i];
      const graph::TensorMeta meta = id == kNoValue ? graph::TensorMeta() : functional_.graph.values[id].meta;
      backward.saved[i] = i + backward.reread < backward.saved.size()
                              ? graph.add_result(meta, /*producer=*/-1)
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
    return compile_inference(request, Users(request).functional_of(request.graph));
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
