// Calls of torch: each becomes a node of the torch level and operators of the graph.
#include "capture/torch/torch_calls.h"

#include <ATen/ops/lift_fresh.h>
#include <Python.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

#include "capture/calls/calls.h"
#include "capture/calls/deferred.h"
#include "capture/calls/handlers.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/frames.h"
#include "capture/interpreter/operations.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/numbers/tried_numbers.h"
#include "capture/torch/class_tensors.h"
#include "capture/torch/distributed_tensors.h"
#include "capture/torch/gradients.h"
#include "capture/torch/torch_function.h"
#include "capture/torch/transforms.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "fake/session.h"
#include "fake/weighed_sizes.h"
#include "graph/orphans.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// What a TorchScript function does besides calling operators, or null: what may not happen during a capture.
const char* script_effect(PyObject* function) {
  static constexpr std::pair<const char*, const char*> effects[] = {
      {"prim::Print", "prints"},          {"aten::warn", "warns"},
      {"prim::PythonOp", "calls Python"}, {"prim::SetAttr", "sets an attribute"},
      {"prim::fork", "starts a task"},
  };
  Ref graph = checked(PyObject_GetAttrString(function, "inlined_graph"));
  for (const auto& [kind, text] : effects) {
    Ref found = checked(PyObject_CallMethod(graph.get(), "findAllNodes", "s", kind));
    if (PySequence_Size(found.get()) > 0) return text;
  }
  return nullptr;
}

graph::TorchNode at_user_line(graph::TorchNode node, InterpFrame* frame) {
  if (!frame) return node;
  node.file = PyUnicode_AsUTF8(frame->info->code->co_filename);
  node.function = PyUnicode_AsUTF8(frame->info->code->co_qualname);
  node.line = frame->instr().line;
  node.called_from = Frames::call_site(*frame);
  return node;
}

}  // namespace

void TorchCalls::check_refusal() {
  if (!c.session->refused()) return;
  fake::Refusal refusal = *c.session->take_refusal();
  PyErr_Clear();
  switch (refusal.kind) {
    case fake::Refusal::Kind::DataDependent:
      c.symbols.check_questions(std::exchange(c.session->wanted, {}));  // perhaps the segment is captured again
      // int(t), bool(t), t.item() and the like are one operator, under a name that says nothing.
      if (refusal.op == "aten._local_scalar_dense.default") refusal.op = "Tensor.item";
      c.side_exit(BreakReason::DataDependentValue, (refusal.op.empty() ? "" : refusal.op + ": ") + refusal.message);
    case fake::Refusal::Kind::DataAccess:
      c.side_exit(BreakReason::DataAccess, refusal.message);
    case fake::Refusal::Kind::Unsupported:
      c.side_exit(BreakReason::UnsupportedOperator, refusal.op + ": " + refusal.message);
  }
}

/// Transforms, or PyTorch's code for DTensors, are at work on tensors whose sizes are symbols. (The error that is set
/// stays.)
static bool works_on_symbols(Capture& capture, PyObject* target) {
  const SavedError error;  // PyTorch is asked for the transforms
  return capture.session->impl().has_symbols && (is_of_distributed(target) || is_transforming());
}

static std::function<PyObject*()> with_plans(Capture& capture, PyObject* target, std::function<PyObject*()> run) {
  if (!is_of_distributed(target)) return run;
  return [&capture, run = std::move(run)] {
    const fake::Planning planning(*capture.session);
    return run();
  };
}

/// Operators from this one on are calls of their own.
static void call_each_operator(Capture& c, size_t first) {
  for (size_t i = first; i < c.graph.aten_nodes.size(); ++i) {
    graph::AtenNode& op = c.graph.aten_nodes[i];
    op.torch_node = static_cast<int32_t>(c.graph.torch_nodes.size());
    c.graph.torch_nodes.push_back(at_user_line(graph::operator_call(op), c.frame));
  }
}

static void add_args(TorchCalls& calls, graph::TorchNode& node, std::span<PyObject* const> args, PyObject* kwnames) {
  const size_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0, rest = args.size() - keywords;
  for (size_t i = 0; i < rest; ++i) node.args.push_back(calls.py_arg(args[i]));
  for (size_t i = 0; i < keywords; ++i) {
    node.kwargs.emplace_back(PyUnicode_AsUTF8(PyTuple_GET_ITEM(kwnames, i)), calls.py_arg(args[rest + i]));
  }
}

/// A parameter of no level, made inside a transform: that it requires gradients, no operator below the levels says.
static bool makes_plain_leaf(PyObject* target, PyObject* result) {
  return c_function_name(target) == "_make_subclass" && !holds_transformed(result);
}

/// What it does with a tensor without an operator does not depend on the tensor's data.
static bool reads_no_data(PyObject* target) {
  static PyObject* const function = PyDict_GetItemString(PyEval_GetBuiltins(), "getattr");
  return target == function || target == MAGNETO_STR("requires_grad_");
}

/// `calls_back`: what it calls may be run again, by autograd.
static Ref run_with_casts(Capture& c, const std::function<PyObject*()>& run, bool calls_back) {
  fake::AutocastCasts& casts = c.session->impl().casts;
  const fake::AutocastCasts::Call call(casts);
  std::optional<fake::AutocastCasts::Aside> aside;
  if (calls_back) aside.emplace(casts);
  const bool had_open = casts.has_open();
  Ref result = Ref::steal(run());
  if (!had_open && casts.has_open() && casts.has_left_outer()) {
    c.torch.cast_in_next_region = {c.frame->info->code, c.frame->pc};
  }
  return result;
}

/// Not what an operator of Python's calls: where that raises, Python asks the other operand.
static bool raises_itself(graph::TorchNode::Kind kind, PyObject* target, const RedispatchedCall& call) {
  return kind == graph::TorchNode::Kind::CallFunction &&
         PyObject_RichCompareBool(target, call.function.get(), Py_EQ) == 1;
}

Ref TorchCalls::record(graph::TorchNode::Kind kind, PyObject* target, std::span<PyObject* const> args,
                       PyObject* kwnames, const std::function<PyObject*()>& run, bool always) {
  // Custom functions and checkpoints call back: they are not overridden, what they call may be.
  const bool calls_back = always && kind == graph::TorchNode::Kind::CallFunction;
  const bool overridden = !calls_back && is_overridden(args);
  RedispatchedCall redispatched;
  if (!reads_no_data(target)) c.gradients.check_data(args);
  c.calls.guard_special_methods(target, args);
  for (PyObject* arg : args) {
    if (!is_generator(arg)) c.containers.refuse_opaque(arg, 3);
  }
  std::optional<ClassCall> class_call;
  if (!overridden) class_call.emplace(c, args);
  dispatched_ = false;
  const auto mark = c.session->mark();
  const auto index = static_cast<int32_t>(c.graph.torch_nodes.size());
  const auto forget = [&] { c.session->rollback(mark), c.graph.torch_nodes.resize(index); };
  const size_t operators = c.graph.aten_nodes.size(), symbols = c.graph.symbols.size();
  c.graph.torch_nodes.emplace_back();
  c.session->torch_node = index;
  std::optional<NativeScope> called(std::in_place, c.mode);
  c.mode.callbacks_allowed = false;
  std::optional<NativeScope> recorded(std::in_place, c.mode);
  c.mode.recording = true;
  c.mode.trusted = PyFunction_Check(target);
  c.mode.engine_runs = false;  // which has called the code that calls this
  Ref result = overridden ? run_noting(run, redispatched) : run_with_casts(c, with_plans(c, target, run), calls_back);
  recorded.reset();
  const bool of_class =
      note_distributed(c, result.get()) || dispatched_ || std::ranges::any_of(args, holds_class_tensor);
  const bool transformed = result && !(makes_plain_leaf(target, result.get()) && !of_class) &&
                           (of_class || is_transforming() || holds_transformed(result.get()) ||
                            std::ranges::any_of(args, holds_transformed));
  if (result && !transformed && is_tensor(result.get()) && !is_fake_tensor(result.get()) &&
      unpack_tensor(result.get()).has_storage()) {
    // Made without the dispatcher (by a TorchScript function from a number): known, like what torch.tensor gives.
    result = Ref::steal(tensor_object(at::lift_fresh(unpack_tensor(result.get()))));
  }
  called.reset();
  c.session->torch_node = -1;
  if (redispatched.function) {
    forget();
    return call_override(redispatched, raises_itself(kind, target, redispatched));
  }
  if (result && !dispatching_ && !c.session->refused()) pass_distributed(c, result.get(), forget);
  if (c.session->refused() || !result || c.errors.sticky) {
    forget();
    c.errors.check_sticky();
    c.symbols.retry_without_rest();
    check_refusal();
    // PyTorch's own Python code asks a size for things that only a number answers.
    const auto fixes = [&] {
      const SavedError error;
      return c.symbols.fix_sizes(args);
    };
    if (fixes()) {
      PyErr_Clear();
      return record(kind, target, args, kwnames, run, always);
    }
    // It may have raised for the program, or because of sizes that are symbols.
    if (works_on_symbols(c, target) && !std::exchange(c.feedback.fixed_sizes, true)) {
      PyErr_Clear();
      throw Retry{};
    }
    throw PythonError{};
  }
  if (c.gradients.reads_set_data(operators)) {
    forget();
    c.side_exit(BreakReason::Mutation, "a tensor is read whose data was set before");
  }
  if (dispatched_) result = with_class(c, std::move(result));
  if (transformed && (!of_class || is_transforming()) && c.graph.symbols.size() > symbols) {
    forget();
    c.side_exit(BreakReason::DataDependentValue, "a data-dependent number or size inside a transform");
  }
  if (c.graph.aten_nodes.size() == operators && (!always || transformed)) {
    c.graph.torch_nodes.resize(index);
    return c.symbols.with_size_numbers(result.get());
  }
  if (is_guarded()) last_guarded = static_cast<int32_t>(c.graph.aten_nodes.size()) - 1;
  if (transformed) {  // a tensor of a level is no value of the graph: what was called below all levels is
    c.graph.torch_nodes.resize(index);
    call_each_operator(c, operators);
    result = c.symbols.with_size_numbers(result.get());
    c.symbols.flush_checks();
    return result;
  }
  graph::TorchNode node = at_user_line({}, c.frame);
  node.kind = kind;
  node.target = Ref::borrow(target);
  add_args(*this, node, args, kwnames);
  std::vector<int32_t> path;
  collect_results(result.get(), path, node.results, 0);
  c.symbols.bind_symbols(result.get(), symbols, node);
  c.graph.torch_nodes[index] = std::move(node);
  result = c.symbols.with_size_numbers(result.get());
  c.symbols.flush_checks();
  return result;
}

bool TorchCalls::is_guarded() const {
  if (c.overlays.writes > 0 || !c.deferred.calls.empty() || c.mode.called_back_from || handled_from_start) return true;
  if (at::GradMode::is_enabled() != c.start_state.grad_mode) return true;
  for (const InterpFrame* f = c.frame; f; f = f->caller) {
    if (f->callback || f->info->handler_of(f->pc)) return true;
  }
  return false;
}

void TorchCalls::name_result(PyObject* value, PyObject* variable) {
  if (!value || !is_fake_tensor(value)) return;  // 3.12 puts back locals that had no value
  const graph::ValueId id = c.session->value_of(unpack_tensor(value));
  if (id == graph::kNoValue || c.graph.values[id].producer < 0) return;
  const int32_t node = c.graph.aten_nodes[c.graph.values[id].producer].torch_node;
  if (node < 0 || node >= static_cast<int32_t>(c.graph.torch_nodes.size())) return;
  for (graph::TorchResult& result : c.graph.torch_nodes[node].results) {
    if (result.value == id && result.variable.empty()) result.variable = PyUnicode_AsUTF8(variable);
  }
}

namespace {

/// Functions that do the same whether a number beside a tensor is wrapped as one or not: how many operands they have.
size_t wraps_numbers(PyObject* callable) {
  static constexpr std::string_view of_two[] = {
      "add",         "sub",        "subtract",    "mul",  "multiply",     "div",     "divide",    "true_divide",
      "add_",        "sub_",       "mul_",        "div_", "eq",           "ne",      "lt",        "le",
      "gt",          "ge",         "not_equal",   "less", "less_equal",   "greater", "remainder", "greater_equal",
      "bitwise_and", "bitwise_or", "bitwise_xor", "fmod", "floor_divide", "rsub",    "xlogy",     "copysign"};
  std::string_view name = c_function_name(callable);
  const std::string op = is_operator_type(Py_TYPE(callable)) ? operator_base_name(callable) : "";
  if (op.starts_with("aten::")) name = std::string_view(op).substr(6);
  if (name == "where") return 3;
  return std::ranges::find(of_two, name) != std::end(of_two) ? 2 : 0;
}

/// An overload whose arguments from the second one on are tensors, or something else than an overload.
bool takes_tensors(PyObject* callable, size_t arguments) {
  static constinit Imported overload("torch._ops", "OpOverload");
  if (Py_TYPE(callable) != overload.type()) return true;
  const Ref given = checked(PyObject_GetAttrString(callable, "_overloadname"));
  const std::string name = PyUnicode_AsUTF8(given.get());
  const auto op =
      c10::Dispatcher::singleton().findSchema({operator_base_name(callable), name == "default" ? "" : name});
  if (!op || op->schema().arguments().size() < arguments) return false;
  for (size_t i = 1; i < arguments; ++i) {
    if (op->schema().arguments()[i].type()->kind() != c10::TypeKind::TensorType) return false;
  }
  return true;
}

}  // namespace

/// Of lists of tensors and of data-dependent floats, which no operator takes as a list.
static bool is_foreach_of_floats(PyObject* callable, const CallArgs& args) {
  const auto is_float = [](PyObject* item) { return is_symbolic_float(item); };
  const auto holds_float = [&](PyObject* value) {
    return (PyList_CheckExact(value) || PyTuple_CheckExact(value)) &&
           std::any_of(PySequence_Fast_ITEMS(value), PySequence_Fast_ITEMS(value) + PySequence_Fast_GET_SIZE(value),
                       is_float);
  };
  return c_function_name(callable).starts_with("_foreach_") && !args.kwnames &&
         std::ranges::any_of(args.values, holds_float);
}

/// Of an operator's argument that is a number, never a tensor: of a tensor without dimensions, PyTorch reads the value.
static bool is_number_argument(std::string_view function, std::string_view name) {
  if (function.empty()) return false;
  if (function.starts_with("_foreach_")) function.remove_prefix(std::string_view("_foreach_").size());
  return name == "alpha" || name == "beta" ||
         (name == "value" && (function.starts_with("addcmul") || function.starts_with("addcdiv")));
}

/// Of a number for which an overload of the operator takes a tensor, with the same result: a rate that a scheduler
/// changes is read in each run.
static bool takes_tensor_too(std::string_view function, PyObject* name) {
  return function.starts_with("_fused_") && PyUnicode_CompareWithASCIIString(name, "lr") == 0;
}

static bool needs_gradient(PyObject* object) {
  if (is_tensor(object)) return unpack_tensor(object).requires_grad();
  if (!PyList_CheckExact(object) && !PyTuple_CheckExact(object)) return false;
  return std::any_of(PySequence_Fast_ITEMS(object), PySequence_Fast_ITEMS(object) + PySequence_Fast_GET_SIZE(object),
                     needs_gradient);
}

namespace {

/// The program itself asks how its tensor lies in memory: it may go either way, so that no answer is a general one, and
/// an exported program is for arguments that lie as the example's.
class ProgramAsks {
 public:
  ProgramAsks(Capture& c, PyObject* callable) : session_(*c.session) {
    static const std::set<std::string_view> of_memory = {"is_contiguous", "stride", "as_strided", "as_strided_"};
    const std::string_view name = c_function_name(callable);
    if (name == "is_contiguous") before_ = session_.set_in_general(false);
    if (session_.exports() && of_memory.contains(name))
      c.assumptions.push_back({.kind = graph::Assumption::Kind::Layout, .question = std::string(name)});
  }
  ~ProgramAsks() {
    if (before_) session_.set_in_general(*before_);
  }
  ProgramAsks(const ProgramAsks&) = delete;

 private:
  fake::Session& session_;
  std::optional<bool> before_;
};

}  // namespace

Ref TorchCalls::call_torch(PyObject* callable, const CallArgs& args) {
  if (Ref result = c.gradients.call_with_data(callable, args)) return result;
  std::vector<Ref> resolved;
  CallArgs values;
  values.kwnames = args.kwnames;
  for (PyObject* arg : args.values) {
    resolved.push_back(c.containers.readable(arg));
    values.values.push_back(resolved.back().get());
  }
  PyObject* const target = callable;  // what the torch level calls, with numbers
  const bool overridden = is_overridden(args.values);
  // A derivative takes the number too, and joint graphs have no such floats.
  const bool reads_numbers =
      !overridden && !(at::GradMode::is_enabled() && std::ranges::any_of(values.values, needs_gradient));
  for (size_t i = values.positional(); i < values.values.size() && reads_numbers; ++i) {
    PyObject*& value = values.values[i];
    if (!is_fake_tensor(value) || !is_number_argument(c_function_name(callable), PyUnicode_AsUTF8(values.keyword(i)))) {
      continue;
    }
    const at::Tensor& tensor = unpack_tensor(value);
    Ref number = tensor.dim() == 0 && !tensor.requires_grad() ? float_of_tensor(c, value) : Ref();
    if (!number) continue;
    value = number.get();
    resolved.push_back(std::move(number));
  }
  for (size_t i = values.positional(); i < values.values.size() && !overridden; ++i) {
    if (!is_unknown_number(values.values[i]) || !takes_tensor_too(c_function_name(callable), values.keyword(i)))
      continue;
    resolved.push_back(c.numbers.beside_tensor(values.values[i]));
    values.values[i] = resolved.back().get();
  }
  if (is_foreach_of_floats(callable, values)) {
    const Ref name = checked(PyUnicode_FromString(std::string(c_function_name(callable)).c_str()));
    values.values.insert(values.values.begin(), name.get());
    return c.calls.call_polyfill("foreach_of_numbers", values);
  }
  if (c.numbers.has_unknown_numbers() && !overridden) {
    callable = with_sizes(callable, values, resolved);
    const bool as_symints = takes_symints(callable);
    const size_t operands = wraps_numbers(callable);
    const bool wraps = operands > 0 && values.positional() == operands && is_fake_tensor(values.values[0]) &&
                       takes_tensors(callable, operands);
    for (size_t i = 1; wraps && i < operands; ++i) {
      if (!size_of_number(values.values[i]) && !is_symbolic_float(values.values[i])) continue;
      resolved.push_back(c.numbers.beside_tensor(values.values[i]));
      values.values[i] = resolved.back().get();
    }
    for (PyObject*& value : values.values) {
      Ref sizes = as_symints ? c.symbols.with_symints(value) : c.symbols.with_known_sizes(value);
      if (sizes.get() == value) continue;
      resolved.push_back(sizes);
      value = sizes.get();
    }
  }
  c.numbers.specialize_all(values);
  if (Ref number = overridden ? Ref() : c.numbers.float_item(callable, values.values)) return number;
  if (values.values.size() == 1 && c_function_name(callable) == "item") {
    if (Ref now = bool_of_data(c, values.values[0])) return now;
  }
  for (PyObject* value : values.values) {
    if (is_generator(value)) draw_from(value);
  }
  const ProgramAsks scope(c, callable);
  // By name it would be the method of a class that has one of its own.
  const bool method = Py_TYPE(target) == &PyMethodDescr_Type &&
                      (values.positional() == 0 || is_exact_tensor_type(Py_TYPE(values.values[0])));
  Ref name = Ref::borrow(method ? PyDescr_NAME(target) : target);
  return record(method ? graph::TorchNode::Kind::CallMethod : graph::TorchNode::Kind::CallFunction, name.get(),
                values.values, args.kwnames, [&] {
                  return PyObject_Vectorcall(callable, values.values.data(), values.positional(), values.kwnames);
                });
}

/// Compiled by torch.jit.script: its interpreter runs on fakes as on any tensors, and its operators are recorded. What
/// it gives back that is no tensor follows from sizes, which are guarded, or needed data and was refused. It asks for
/// plain sizes: where they differ from run to run, the function that it was compiled from is interpreted.
Ref TorchCalls::call_script_function(PyObject* function, const CallArgs& args) {
  const auto is_sized = [&](PyObject* arg) {
    return holds_size(arg) || (is_fake_tensor(arg) && c.symbols.shape_of(unpack_tensor(arg)));
  };
  if (!c.feedback.plain_sizes && std::ranges::any_of(args.values, is_sized)) {
    Ref original = Ref::steal(PyObject_GetAttrString(function, "_torchdynamo_inline"));
    PyErr_Clear();
    if (original && PyFunction_Check(original.get())) {
      const OfTorch scope(c.symbols, true);
      return c.calls.inline_function(c.world.wrap(original.get(), c.sources.constant(original.get())).get(), args);
    }
  }
  if (const char* effect = script_effect(function)) {
    c.side_exit(BreakReason::OpaqueCall, "the TorchScript function " + callable_name(function) + " " + effect);
  }
  return call_torch(function, args);
}

graph::PyArg TorchCalls::py_arg(PyObject* object) {
  using Kind = graph::PyArg::Kind;
  graph::PyArg arg;
  auto add_items = [&](PyObject* sequence) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i) {
      arg.items.push_back(py_arg(PySequence_Fast_GET_ITEM(sequence, i)));
    }
  };
  if (const auto size = symint_value(object)) {
    arg.kind = Kind::Size;
    arg.size = *size;
  } else if (const at::Tensor holder = symfloat_holder(object); holder.defined()) {
    arg.kind = Kind::Number;
    arg.value = c.session->value_of(holder);
  } else if (is_tensor(object) && fake::is_fake(unpack_tensor(object))) {
    arg.kind = Kind::Value;
    arg.value = c.session->value_of(unpack_tensor(object));
  } else if (PyTuple_Check(object)) {
    arg.kind = Kind::Tuple;
    const bool is_made = c.calls.classes.is_class(Py_TYPE(object));  // of a class that each run makes anew
    if (!PyTuple_CheckExact(object) && !is_made) arg.object = Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(object)));
    add_items(object);
  } else if (PyList_CheckExact(object)) {
    arg.kind = Kind::List;
    add_items(object);
  } else if (PyDict_CheckExact(object)) {
    arg.kind = Kind::Dict;
    arg.object = checked(PySequence_Tuple(object));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arg.object.get()); ++i) {
      arg.items.push_back(py_arg(PyDict_GetItem(object, PyTuple_GET_ITEM(arg.object.get(), i))));
    }
  } else if (PySlice_Check(object)) {
    auto* slice = reinterpret_cast<PySliceObject*>(object);
    arg.kind = Kind::Slice;
    for (PyObject* part : {slice->start, slice->stop, slice->step}) arg.items.push_back(py_arg(part));
  } else {
    arg.object = Ref::borrow(object);
  }
  return arg;
}

void TorchCalls::collect_results(PyObject* result, std::vector<int32_t>& path, std::vector<graph::TorchResult>& results,
                                 int depth) {
  if (is_tensor(result)) {
    const at::Tensor& tensor = unpack_tensor(result);
    const auto value = c.session->value_of(tensor);
    if (value == graph::kNoValue) return;
    results.push_back({path, value});
    if (tensor.requires_grad() && tensor.is_leaf()) c.session->leave_out_of_autocast_cache(tensor);
    return;
  }
  if (depth > 4 || (!PyTuple_Check(result) && !PyList_CheckExact(result))) return;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(result); ++i) {
    path.push_back(static_cast<int32_t>(i));
    collect_results(PySequence_Fast_GET_ITEM(result, i), path, results, depth + 1);
    path.pop_back();
  }
}

}  // namespace magneto::capture
