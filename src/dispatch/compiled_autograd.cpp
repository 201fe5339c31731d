#include "dispatch/compiled_autograd.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>

#include "autograd/backward_capture.h"
#include "compiler/pipeline.h"
#include "dispatch/context.h"
#include "dispatch/report.h"
#include "graph/gm.h"
#include "graph/operator_calls.h"
#include "observe/stats.h"
#include "python/text.h"
#include "runtime/backward_run.h"
#include "runtime/computation.h"
#include "runtime/plan/torch_errors.h"
#include "runtime/user_half.h"
#include "support/gil.h"
#include "support/tensor_object.h"

namespace magneto::dispatch {

namespace {

using autograd::BackwardPiece;
using autograd::BackwardRegion;
using runtime::BackwardCall;
using torch::autograd::Edge;

/// Why a backward is left to the engine.
struct LeftToEngine {
  std::string why;  // empty: eager raises, or there is nothing to compile
};

/// One kind of backward.
struct Entry {
  /// Which pieces of a family it computes.
  std::vector<int64_t> segments;
  autograd::NumberGuards guards;
  std::shared_ptr<const runtime::BackwardProgram> program;  // null: there is none
  std::string refusal;
  std::vector<std::shared_ptr<const void>> owners;
  size_t structure = 0;
};

/// Pieces of the same key (BackwardPiece::key).
struct Family {
  std::vector<Entry> entries;
  /// By entry: what its piece's numbers were, but for those of segments.
  std::vector<std::vector<int64_t>> numbers;
};
using Families = std::map<std::vector<int64_t>, Family>;

struct Block {
  // A pointer: a thread that ends inside a block has no GIL any more to free it with.
  PyObject* compiler;
  /// Sizes are symbols at once, or never; less than zero: as the settings say.
  int dynamic;
};
thread_local std::vector<Block> blocks;
bool all_backwards = false;

/// Borrowed; null: backwards are not compiled.
PyObject* current_compiler() {
  if (blocks.empty()) return all_backwards ? Py_None : nullptr;
  return blocks.back().compiler == Py_False ? nullptr : blocks.back().compiler;
}

/// As for forwards (capture_setup.cpp).
autograd::Varying current_varying() {
  using autograd::Varying;
  const int dynamic = blocks.empty() ? -1 : blocks.back().dynamic;
  if (dynamic >= 0) return dynamic ? Varying::All : Varying::Nothing;
  if (!settings().assume_static_by_default) return Varying::All;
  return settings().automatic_dynamic_shapes ? Varying::Changed : Varying::Nothing;
}

/// By compiler.
struct Programs {
  uint64_t generation = reset_generation();
  std::map<PyObject*, std::pair<Ref, Families>> by_compiler;
};

Families& families_of(PyObject* compiler) {
  static auto& programs = *new Programs;
  if (programs.generation != reset_generation()) programs = {};
  auto& [kept, families] = programs.by_compiler[compiler];
  if (!kept) kept = Ref::borrow(compiler);
  return families;
}

/// In all, and of one structure: what varies more is the engine's, with the programs of compiled segments.
constexpr int64_t kMostEntries = 64, kMostSizes = 8;

// -- what is asked

Edge edge_of(PyObject* object) {
  if (!is_tensor_object(object)) throw LeftToEngine{};
  const at::Tensor& tensor = unpack_tensor(object);
  if (!tensor.requires_grad()) throw LeftToEngine{};
  return torch::autograd::impl::gradient_edge(tensor);
}

/// As the engine would have to take it: the same form as the result, and nothing that has gradients of its own.
at::Tensor tangent_of(PyObject* object, const Edge& root) {
  if (!is_tensor_object(object)) throw LeftToEngine{};
  const at::Tensor& tangent = unpack_tensor(object);
  const auto& meta = root.function->input_metadata(root.input_nr);
  if (!is_exact_tensor_type(Py_TYPE(object))) throw LeftToEngine{"gradients that are of a class of tensors"};
  if (!autograd::is_plain(tangent)) throw LeftToEngine{"gradients that are no plain tensors of the CPU"};
  if (meta.is_tensor_subclass() || meta.is_nested_tensor() || !meta.is_same_shape(tangent) ||
      tangent.dtype() != meta.dtype()) {
    throw LeftToEngine{};
  }
  return tangent;
}

BackwardCall read(PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"tensors", "grad_tensors",      "keep_graph",      "create_graph",
                                "inputs",  "allow_unreachable", "accumulate_grad", nullptr};
  PyObject *tensors, *tangents, *inputs;
  int keep_graph, create_graph, allow_unreachable = 0, accumulate = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!ppO!|pp", const_cast<char**>(names), &PyTuple_Type, &tensors,
                                   &PyTuple_Type, &tangents, &keep_graph, &create_graph, &PyTuple_Type, &inputs,
                                   &allow_unreachable, &accumulate)) {
    PyErr_Clear();  // the engine says what is wrong
    throw LeftToEngine{};
  }
  if (create_graph) throw LeftToEngine{"create_graph=True"};
  if (c10::impl::dispatch_mode_enabled()) throw LeftToEngine{"a dispatch mode"};
  if (c10::InferenceMode::is_enabled()) throw LeftToEngine{};
  if (torch::autograd::AnomalyMode::is_enabled()) throw LeftToEngine{"anomaly mode"};
  if (at::autocast::is_autocast_enabled(at::kCPU)) throw LeftToEngine{"autocast"};  // formulas run under it
  if (at::SavedTensorDefaultHooks::get_hooks(/*ignore_is_tracing=*/true)) throw LeftToEngine{"hooks on saved tensors"};
  if (PyTuple_GET_SIZE(tensors) == 0 || PyTuple_GET_SIZE(tensors) != PyTuple_GET_SIZE(tangents)) throw LeftToEngine{};
  BackwardCall call;
  call.keep_graph = keep_graph != 0;
  call.accumulate = accumulate != 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
    call.roots.push_back(edge_of(PyTuple_GET_ITEM(tensors, i)));
    call.tangents.push_back(tangent_of(PyTuple_GET_ITEM(tangents, i), call.roots.back()));
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
    const Edge edge = edge_of(PyTuple_GET_ITEM(inputs, i));
    const bool leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get());
    if (!leaf && accumulate) throw LeftToEngine{"gradients of tensors that are no leaves, to be accumulated"};
    call.asked.push_back(edge);
  }
  return call;
}

// -- compiling

/// A graph as the compiler of the program is given it, and what that makes of it.
std::unique_ptr<runtime::TensorComputation> compile_by(PyObject* compiler, graph::Graph graph) {
  std::vector<std::string> sizes;
  for (size_t i = 0; i < graph.symbols.size(); ++i) sizes.push_back("sizes_" + std::to_string(i + 1));
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    graph.values[graph.inputs[i]].name = "inputs_" + std::to_string(i + 1);
  }
  const Ref module =
      graph::operator_module(graph::with_operators_as_calls(graph), {.returned = graph.outputs, .symbols = sizes});
  runtime::UserHalf half;
  half.callable = checked(PyObject_CallOneArg(compiler, module.get()));
  half.name = "what the compiler of compiled autograd gave for a backward";
  half.returned = graph.outputs.size();
  for (size_t i = 0; i < graph.outputs.size(); ++i) half.outputs.push_back(static_cast<int32_t>(i));
  return runtime::make_user_computation(std::move(half), graph);
}

/// By a backend of ours.
std::unique_ptr<runtime::TensorComputation> compile_natively(const compiler::Backend& backend,
                                                             const graph::Graph& graph) {
  if (backend.runs_captured()) return runtime::make_aten_computation(graph);
  const compiler::CompileWay way{.operators = backend.operators, .place = "a backward over several graphs"};
  observe::Events events;
  compiler::Compiled made = compiler::compile_graph(graph, way, events);
  events.tell(&observe::Observer::program_made, {way.place, made, /*specialised=*/false});
  return std::move(made.computation);
}

std::unique_ptr<runtime::TensorComputation> compile(PyObject* compiler, const graph::Graph& graph) {
  if (compiler == Py_None) return compile_natively(compiler::backends().front(), graph);
  if (!PyUnicode_Check(compiler)) return compile_by(compiler, graph);
  const compiler::Backend* backend = compiler::find_backend(text_argument(compiler));
  if (!backend || backend->level != compiler::Backend::Level::Aten) throw std::invalid_argument("no such backend");
  return compile_natively(*backend, graph);
}

/// With symbols for what varies, if that can be; else for these numbers alone.
autograd::CapturedBackward capture(const BackwardPiece& piece, std::vector<std::vector<int64_t>> before) {
  autograd::SymbolChoice choice{current_varying(), settings().use_duck_shape, std::move(before)};
  autograd::CapturedBackward captured = autograd::capture_backward(piece, choice);
  if (captured.refusal.empty() || choice.varying == autograd::Varying::Nothing) return captured;
  choice.varying = autograd::Varying::Nothing;
  autograd::CapturedBackward plain = autograd::capture_backward(piece, choice);
  if (plain.refusal.empty()) report_backward_sizes({"no symbols in a backward: " + captured.refusal});
  return plain;
}

Entry make_entry(PyObject* compiler, const BackwardPiece& piece, std::vector<std::vector<int64_t>> before) {
  autograd::CapturedBackward captured = capture(piece, std::move(before));
  Entry entry{.segments = piece.programs(),
              .guards = std::move(captured.guards),
              .program = nullptr,
              .refusal = std::move(captured.refusal),
              .owners = piece.owners(),
              .structure = piece.structure()};
  if (!entry.refusal.empty()) return entry;
  for (const std::string& op : captured.specialised) report_backward_sizes({"specialise " + op});
  report_backward_sizes(entry.guards.lines());
  auto program = std::make_shared<runtime::BackwardProgram>();
  program->gradients = std::move(captured.gradients);
  program->numbers = std::move(captured.numbers);
  program->computation = compile(compiler, captured.graph);
  entry.program = std::move(program);
  ++stats().whole_backwards;
  return entry;
}

/// The engine runs all of it, or a part; said once for each cause.
void report_left(const std::string& why) {
  ++stats().eager_backwards[why];
  if (settings().strict) {
    raise("Unsupported", "compiled autograd, in strict mode: " + why);
    throw PythonError{};
  }
  report_eager_backward(why);
}

using Program = std::shared_ptr<const runtime::BackwardProgram>;

Program find_program(PyObject* compiler, const BackwardPiece& piece) {
  const auto usable = [](const Entry& entry) {
    if (!entry.program) throw LeftToEngine{entry.refusal};
    return entry.program;
  };
  for (const at::Tensor& tangent : piece.tangents()) {
    if (!autograd::is_plain(tangent)) throw LeftToEngine{"gradients that are no plain tensors of the CPU"};
  }
  const auto& families = families_of(compiler);
  std::vector<std::vector<int64_t>> before;
  if (const auto known = families.find(piece.key()); known != families.end()) {
    for (const Entry& entry : known->second.entries) {
      if (entry.segments == piece.programs() && entry.guards.hold(piece.numbers())) return usable(entry);
    }
    before = known->second.numbers;
  }
  int64_t all = 0, alike = 0;
  for (const auto& [key, family] : families) {
    all += std::ssize(family.entries);
    alike += std::ranges::count(family.entries, piece.structure(), &Entry::structure);
  }
  if (alike >= kMostSizes) throw LeftToEngine{"sizes or numbers that vary much"};
  if (all >= kMostEntries) throw LeftToEngine{"more kinds of backwards than programs are kept for"};
  // Nodes ask the engine which of their gradients are wanted.
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  if (asked && !asked->empty()) throw LeftToEngine{"a backward inside of one that is asked for some gradients"};
  Entry made = make_entry(compiler, piece, std::move(before));  // calls Python, which may forget all programs
  Family& family = families_of(compiler)[piece.key()];
  family.numbers.emplace_back(piece.numbers().begin(), piece.numbers().begin() + piece.outline());
  return usable(family.entries.emplace_back(std::move(made)));
}

/// Null, and said: there is none. In the engine, which calls it without the GIL.
Program program_of(PyObject* compiler, const BackwardPiece& piece, bool& any) {
  Program program;
  runtime::with_python([&] {
    try {
      program = find_program(compiler, piece);
      any |= program != nullptr;
    } catch (const LeftToEngine& left) {
      report_left(left.why);
    }
  });
  return program;
}

Ref run(PyObject* compiler, PyObject* args, PyObject* kwargs) {
  if (fake::Session::current()) throw LeftToEngine{};  // a capture computes with stand-ins
  BackwardCall call = read(args, kwargs);
  BackwardRegion region(call.roots, call.asked);
  for (const auto& [why, count] : region.left()) report_left(why);
  if (region.count(BackwardRegion::Role::Inside) == 0) throw LeftToEngine{};
  const Ref kept = Ref::borrow(compiler);  // a hook may leave the block
  bool any = false;
  call.program_of = [&](const BackwardPiece& piece) { return program_of(compiler, piece, any); };
  if (!call.asked.empty()) {
    const autograd::Arrived arrived = runtime::arrive(region, call.tangents);
    call.program_of = [program = find_program(compiler, {region, 0, arrived}), &any](const BackwardPiece&) {
      any = true;
      return program;
    };
  }
  torch::autograd::variable_list gradients;
  const bool ok = runtime::with_torch_errors([&] {
    const WithoutGil no_gil;
    gradients = runtime::run_backward(std::move(region), std::move(call));
  });
  stats().whole_backward_runs += any && ok;
  if (!ok) throw PythonError{};
  Ref result = checked(PyTuple_New(static_cast<Py_ssize_t>(gradients.size())));
  for (size_t i = 0; i < gradients.size(); ++i) {
    PyObject* gradient = gradients[i].defined() ? tensor_object(gradients[i]) : Py_NewRef(Py_None);
    PyTuple_SET_ITEM(result.get(), i, checked(gradient).release());
  }
  return result;
}

}  // namespace

void enter_compiled_autograd(PyObject* compiler, int dynamic) { blocks.push_back({Py_NewRef(compiler), dynamic}); }

bool leave_compiled_autograd() {
  if (blocks.empty()) {
    PyErr_SetString(PyExc_RuntimeError, "no block of compiled autograd was entered on this thread");
    return false;
  }
  Py_DECREF(blocks.back().compiler);
  blocks.pop_back();
  return true;
}

void compile_all_backwards(bool on) { all_backwards = on; }
bool compiles_backwards() { return current_compiler() != nullptr; }

PyObject* run_backward(PyObject* engine, PyObject* args, PyObject* kwargs) {
  if (PyObject* const compiler = current_compiler()) {
    try {
      return run(compiler, args, kwargs).release();
    } catch (const LeftToEngine& left) {
      if (!left.why.empty()) report_left(left.why);
    } catch (const c10::Error&) {
      // What is saved is not what it was, or is freed: the engine raises that where it comes to it.
    }
  }
  return PyObject_Call(engine, args, kwargs);
}

}  // namespace magneto::dispatch
