// From a frame's state to an entry of its cache: capture, backend, messages.
#include <ATen/Context.h>

#include <algorithm>

#include "cache/cache.h"
#include "capture/marks.h"
#include "dispatch/block.h"
#include "dispatch/capture_setup.h"
#include "dispatch/context.h"
#include "dispatch/limits.h"
#include "dispatch/log.h"
#include "dispatch/report.h"
#include "dispatch/siblings.h"
#include "dispatch/stages.h"
#include "dispatch/trace.h"
#include "graph/gm.h"
#include "observe/history.h"
#include "observe/profiler_range.h"
#include "observe/progress.h"
#include "observe/stats.h"
#include "observe/times.h"
#include "python/abi/c_stack.h"
#include "runtime/computation.h"
#include "runtime/joint_computation.h"
#include "runtime/program/prepacked.h"
#include "runtime/sized_computation.h"
#include "support/tensor_object.h"

namespace magneto::dispatch {

CompileHooks& compile_hooks() {
  static auto* hooks = new CompileHooks;
  return *hooks;
}

uint64_t& reset_generation() {
  static uint64_t generation = 0;
  return generation;
}

int64_t& captures_at(const Place& place) {
  static auto* counts = new std::map<Place, int64_t>;
  return (*counts)[place];
}

int Context::traverse(visitproc visit, void* arg) const {
  Py_VISIT(backend.get());
  for (const auto& [place, segment] : segments_) {
    for (const auto& entry : segment.entries) {
      if (!entry) continue;  // being moved
      if (const int stop = entry->guards->traverse(visit, arg)) return stop;
      if (const int stop = entry->plan->traverse(visit, arg)) return stop;
    }
  }
  return 0;
}

Context::~Context() { Siblings::leave(*this); }

Context::InFlight::InFlight(Context& context) : context_(context) {
  ++context.calls_;
  if (context.generation_ == reset_generation()) return;
  context.generation_ = reset_generation();
  context.first_info_ = nullptr;
  if (!context.segments_.empty()) context.retired_.push_back(std::exchange(context.segments_, {}));
  if (context.calls_ == 1) std::exchange(context.retired_, {});
}

Context::InFlight::~InFlight() {
  if (--context_.calls_ == 0 && !context_.retired_.empty()) std::exchange(context_.retired_, {});
}

namespace {

/// The entry whose guards hold for `roots` (moved to the front of its segment), or null. `*slots`: what they loaded.
Entry* find_entry(Segment& segment, const guards::Roots& roots, PyObject* const** slots) {
  const runtime::ProfilerRange range([] { return "TorchDynamo Cache Lookup"; });
  auto& entries = segment.entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    Entry* entry = entries[i].get();
    *slots = entry->guards->check(roots);
    if (!*slots) continue;
    if (i > 0) std::rotate(entries.begin(), entries.begin() + i, entries.begin() + i + 1);
    return entry;
  }
  return nullptr;
}

/// "fn in playground.py:3".
std::string function_in_file(const CodePlace& place) {
  return std::string(PyUnicode_AsUTF8(place.info->code->co_qualname)) + " in " +
         PyUnicode_AsUTF8(place.info->code->co_filename) + ":" + std::to_string(place.line());
}

/// The id of a compile of the segment that begins now.
CompileId next_id(Segment& segment) {
  if (segment.frame_id < 0) segment.frame_id = stats().frame_ids++;
  return {segment.frame_id, segment.compiles++, 0};
}

/// "Step 1: ...", as the documents number the parts of torch.compile: capture, backend, code generation.
template <typename Text>
void log_step(const char* component, const Text& text) {
  if (log_enabled(component)) log(component, text());
}

/// What is to be said of the cache on disk. It costs time at most.
void report_cache() {
  const std::string notice = cache::take_notice();
  if (notice.empty()) return;
  SavedError saved;
  if (!warn(notice)) PyErr_WriteUnraisable(nullptr);
}

/// The current error as an exception object that has its traceback; clears it.
Ref take_error_with_traceback() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref::steal(value);
}

std::vector<PyObject*> tensors_of(const std::vector<Ref>& inputs) {
  std::vector<PyObject*> tensors;
  for (const Ref& input : inputs) tensors.push_back(input.get());
  return tensors;
}

runtime::CompileWay way_of(const Context& context, const capture::Trace& trace, const capture::Start& start) {
  runtime::CompileWay way;
  way.interpret = settings().interpret_kernels;
  way.watched = watched_weights(tensors_of(trace.example_inputs));
  const bool deterministic =
      context.settings[&Settings::deterministic] || at::globalContext().deterministicAlgorithms();
  if (way.interpret || deterministic || !context.settings[&Settings::max_autotune]) return way;
  way.tuning.seconds = static_cast<double>(context.settings[&Settings::max_autotune_seconds]);
  way.tuning.takes = settings().max_autotune_takes;
  way.tuning.name = place_text(place_of(context, start));
  for (const Ref& input : trace.example_inputs) way.tuning.inputs.push_back(unpack_tensor(input.get()));
  return way;
}

/// What the graph's symbols were in the capture.
graph::SymbolValues captured_sizes(const capture::Trace& trace) {
  std::vector<const at::Tensor*> inputs;
  for (const Ref& input : trace.example_inputs) inputs.push_back(&unpack_tensor(input.get()));
  return graph::SymbolReader(trace.graph).read(inputs.data());
}

void count_kernels(const runtime::Compiled& compiled, const std::string& place) {
  stats().kernels += compiled.kernels;
  stats().instructions += compiled.instructions;
  report_cut(place, compiled.cut, compiled.kernels);
}

/// Generates code for one size of a graph that has been captured for many.
runtime::Specialise specialise_as(runtime::CompileWay way, bool disk_cache, std::string place) {
  way.tuning = {};  // for the sizes of the capture
  return [way = std::move(way), disk_cache, place = std::move(place)](const graph::Graph& graph) {
    const cache::Pause without(!disk_cache);
    graph::NoSink sink;
    runtime::Compiled compiled = runtime::make_compiled_computation(graph, way, sink);
    count_kernels(compiled, place);
    ++stats().specialised;
    if (!compiled.uncompiled.empty()) report_uncompiled(place, compiled.uncompiled);
    return std::move(compiled.computation);
  };
}

/// Fused kernels for a graph none of whose results requires grad. What can't be compiled runs operator by operator,
/// counted and said once.
std::unique_ptr<runtime::TensorComputation> compile_tensors(const Context& context, const graph::Graph& graph,
                                                            const graph::SymbolValues& captured,
                                                            const runtime::CompileWay& way, const std::string& place,
                                                            Stages& stages) {
  runtime::Compiled compiled;
  if (graph.symbols.empty()) {
    compiled = runtime::make_compiled_computation(graph, way, stages);
  } else if (!graph.symbols_of(graph::ValueKind::Result).empty()) {
    compiled = runtime::make_partitioned_computation(graph, way, stages);
  } else {
    compiled = runtime::make_compiled_computation(graph, way, stages);
    if (!compiled.uncompiled.empty()) {
      // Code for one size after the other.
      if (CompileLog::current()->wants("dynamic")) {
        log("dynamic", "no code for all sizes of " + place + ": " + compiled.uncompiled);
      }
      compiled = runtime::make_compiled_computation(graph::with_numbers(graph, captured), way, stages);
      compiled.computation =
          runtime::make_sized_computation(graph, captured, std::move(compiled.computation),
                                          specialise_as(way, context.settings[&Settings::disk_cache], place));
    }
  }
  report_cache();
  count_kernels(compiled, place);
  stats().tuned += compiled.tuned;
  stats().cached_programs += compiled.kept;
  if (compiled.watch) CompileTrace::current()->watch(std::move(compiled.watch));
  if (CompileTrace* log = CompileTrace::current(); compiled.kept && log->is_on()) {
    log->stage("fx_graph_cache_hit", "the program was found in the cache on disk: passes and lowering did not run\n");
  }
  for (const std::string& name : compiled.externs) ++stats().externs[name];
  if (!compiled.uncompiled.empty()) {
    report_uncompiled(place, compiled.uncompiled);
    stages.offer(graph::Stage::hints, [&] { return "the operators run one by one: " + compiled.uncompiled + "\n"; });
  }
  return std::move(compiled.computation);
}

/// Logs the step of code generation around `compile()`.
template <typename Compile>
auto log_compile(const char* direction, Compile compile) {
  const auto log_state = [&](const char* state) {
    log_step("inductor",
             [&] { return std::string(state) + " " + direction + " graph " + std::to_string(stats().graphs - 1); });
  };
  log_state("Step 3: torchinductor compiling");
  auto computation = compile();
  log_state("Step 3: torchinductor done compiling");
  return computation;
}

/// The default backend.
void compile_graph(const Context& context, capture::Trace& trace, const capture::Start& start, Stages& stages) {
  const cache::Pause without(!context.settings[&Settings::disk_cache]);
  trace.plan->computation = log_compile("FORWARDS", [&] {
    const graph::SymbolValues values = trace.graph.symbols.empty() ? graph::SymbolValues() : captured_sizes(trace);
    return compile_tensors(context, trace.graph, values, way_of(context, trace, start),
                           place_text(place_of(context, start)), stages);
  });
}

/// A graph with gradients: its forward, and backwards that autograd's engine calls.
void compile_joint(const Context& context, capture::Trace& trace, const capture::Start& start, Stages& stages) {
  const cache::Pause without(!context.settings[&Settings::disk_cache]);
  ++stats().joint_graphs;
  const std::string place = place_text(place_of(context, start));
  for (const autograd::Backward& backward : trace.joint->backwards) {
    stats().saved_bytes += backward.saved_bytes;
    stats().eager_saved_bytes += backward.eager_saved_bytes;
    stats().recomputed += backward.recomputed;
    for (const autograd::Departure departure : backward.departures) report_partition(place, departure);
  }
  if (CompileTrace* log = CompileTrace::current()) log->trains(trace.graph, *trace.joint);
  const graph::Graph forward = runtime::forward_of(trace.graph, *trace.joint);
  if (CompileLog::current()->wants("aot_joint_graph")) {
    std::string text = "forward of " + place + ":\n" + graph::print(forward);
    for (const auto& backward : trace.joint->backwards) text += "backward:\n" + graph::print(backward.graph);
    log("aot_joint_graph", text);
  }
  // The weights change with each step: nothing is prepared of them, and nothing measured.
  runtime::CompileWay way;
  way.interpret = settings().interpret_kernels;
  const graph::SymbolValues values = trace.graph.symbols.empty() ? graph::SymbolValues() : captured_sizes(trace);
  const auto compile = [&](const char* direction, const graph::Graph& graph) {
    if (context.backend_name == "aot_eager") return runtime::make_aten_computation(graph);
    return log_compile(direction, [&] { return compile_tensors(context, graph, values, way, place, stages); });
  };
  auto forward_computation = compile("FORWARDS", forward);
  std::vector<std::unique_ptr<runtime::TensorComputation>> computations;
  for (const autograd::Backward& backward : trace.joint->backwards) {
    computations.push_back(compile("BACKWARDS", backward.graph));
  }
  trace.plan->computation =
      runtime::make_joint_computation(trace.graph, std::move(*trace.joint), std::move(forward_computation),
                                      std::move(computations), runtime::make_torch_computation(trace.graph));
}

/// Gives the plan its computation. False: the backend failed, with the error set.
bool apply_backend(Context& context, capture::Trace& trace, const capture::Start& start, Stages& stages) {
  graph::Graph& graph = trace.graph;
  const bool wants_module = context.backend_name.empty();
  const CompileLog& wanted = *CompileLog::current();
  const bool log_module = wanted.wants_any({"graph", "graph_code", "graph_sizes"});
  Ref module;
  if (wants_module || log_module || context.report) module = graph::graph_module(graph, log_module);
  if (context.report) {
    context.report->graphs.push_back(module);
    std::vector<Ref> ops;
    for (const graph::TorchNode& node : graph.torch_nodes) ops.push_back(node.target);
    context.report->ops.push_back(std::move(ops));
  }
  if (log_module) log_graph("__compiled_fn_" + std::to_string(stats().graphs), module.get());
  if (context.backend_name == "eager") {
    trace.plan->computation = runtime::make_torch_computation(graph);
    return true;
  }
  if (!context.backend_name.empty()) {
    if (trace.needs_grad && !trace.joint) {
      ++stats().autograd_graphs;
      report_no_joint(place_of(context, start), trace.no_joint);
      stages.offer(graph::Stage::hints, [&] {
        return "results require grad, and there is no joint graph (" + trace.no_joint +
               "): the torch calls run one by one, under autograd. For inference, call it under torch.no_grad() or "
               "torch.inference_mode()\n";
      });
      trace.plan->computation = runtime::make_torch_computation(graph);
    } else if (trace.needs_grad) {
      try {
        compile_joint(context, trace, start, stages);
      } catch (const PythonError&) {
        return false;  // Ctrl-C
      }
    } else if (context.backend_name == "aot_eager") {
      trace.plan->computation = runtime::make_aten_computation(graph);
    } else {
      try {
        compile_graph(context, trace, start, stages);
      } catch (const PythonError&) {
        return false;  // Ctrl-C
      }
    }
    return true;
  }
  Ref inputs = checked(PyList_New(0));
  const auto add = [&](const Ref& input) {
    if (PyList_Append(inputs.get(), input.get()) < 0) throw PythonError{};
  };
  const graph::SymbolValues values = captured_sizes(trace);
  for (const graph::SymbolBinding& symbol : graph.symbols_of(graph::ValueKind::Input)) {
    add(checked(PyLong_FromLongLong(values(shapes::Expr::symbol(symbol.symbol)))));
  }
  for (const Ref& input : trace.example_inputs) add(input);
  Ref callable = Ref::steal(PyObject_CallFunctionObjArgs(context.backend.get(), module.get(), inputs.get(), nullptr));
  if (callable && !PyCallable_Check(callable.get())) {
    PyErr_Format(PyExc_TypeError, "the backend returned %R, which can't be called", callable.get());
    callable = Ref();
  }
  if (!callable) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;  // KeyboardInterrupt and the like
    Ref cause = take_error_with_traceback();
    raise("BackendFailed", backend_failure_text(context.backend.get(), cause.get(), place_of(context, start)));
    Ref failed = take_error_with_traceback();
    PyException_SetCause(failed.get(), cause.release());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(failed.get())), failed.get());
    return false;
  }
  trace.plan->computation = runtime::make_callable_computation(std::move(callable), graph, true);
  return true;
}

/// The graph's part of a compile. False: the backend failed, with the error set.
bool compile_backend(Context& context, capture::Trace& trace, const capture::Start& start) {
  ++stats().graphs;
  stats().ops += static_cast<int64_t>(trace.graph.torch_nodes.size());
  const char* function = PyUnicode_AsUTF8(place_of(context, start).info->code->co_name);
  Stages stages(context, context.name.empty() ? function : context.name);
  stages.offer(graph::Stage::captured, [&] { return graph::print(trace.graph); });
  stages.offer(graph::Stage::guards, [&] { return trace.guards->print(); });
  const std::string backend = context.backend_name.empty() ? "of the user" : context.backend_name;
  log_step("dynamo", [&] { return "Step 2: calling compiler function " + backend; });
  runtime::RecordedRuns runs;
  runtime::StageTime time("compile.backend");
  if (!apply_backend(context, trace, start, stages)) return false;
  const double seconds = time.end();
  if (context.report) context.report->backend_seconds += seconds;
  stages.offer(graph::Stage::profile, [&] { return runs.print(); });
  log_step("dynamo", [&] { return "Step 2: done compiler function " + backend; });
  return true;
}

/// The program itself raised in the capture: CPython runs it, and is expected to raise the same; clears the error.
void expect_raise(Segment& segment, const std::vector<CodePlace>& site) {
  const Ref raised = take_error();
  const Ref text = Ref::steal(PyObject_Str(raised.get()));
  const char* message = text ? PyUnicode_AsUTF8(text.get()) : "";
  const std::string error = std::string(Py_TYPE(raised.get())->tp_name) + ": " + (message ? message : "");
  report_raised(site, error);
  segment.raised = error + "\n";
  for (const CodePlace& place : site) segment.raised += place_text(place) + "\n";
  PyErr_Clear();
}

}  // namespace

/// What becomes of a captured graph, however its compile ends.
struct KeptForTrace {
  KeptForTrace(CompileTrace& trace, graph::Graph& graph) : trace(trace), graph(graph) {}
  ~KeptForTrace() { trace.keep(std::move(graph)); }
  KeptForTrace(const KeptForTrace&) = delete;
  CompileTrace& trace;
  graph::Graph& graph;
};

/// Captures a segment and adds its entry. Null as for `entry_for`.
static Entry* compile_segment(Context& context, Segment& segment, const capture::Start& start) {
  if (segment.given_up) return nullptr;
  const CodePlace place = place_of(context, start);
  if (c_stack_is_low()) {
    report_skipped(place, "the calls go too deep for a capture");
    return nullptr;
  }
  const guards::Roots roots{start.function, start.slots, start.slots + start.info->nlocals};
  CompileLog compile_log(next_id(segment));
  CompileTrace compile_trace(compile_log, start, place);
  const int64_t captures = captures_at({start.info->code, start.instr, context.instance});
  if (!stance_allows(segment, place, roots) || !allow_another(context, segment, place, captures, roots)) return nullptr;
  InstructionLog instruction_log(compile_log.wants("trace_source"), compile_log.wants("trace_bytecode"));
  const OutsideBlocks outside;
  const runtime::Progress progress(place_text(place));
  runtime::StageTime whole("compile");
  const DeclaredShapes declared(context, start);
  if (!declared.violation().empty()) return raise("ConstraintViolation", declared.violation()), nullptr;
  const auto circumstances = std::make_shared<const Circumstances>(circumstances_of(start));
  std::vector<bool> watched;
  std::vector<CodePlace> site;
  bool said_compiling = false;
  std::string captured;
  Ref interrupt;
  const auto fails = [&](std::string cause, std::string message) -> Entry* {
    fall_back(context, segment, place,
              {.cause = std::move(cause),
               .message = std::move(message),
               .stage = runtime::failed_stage(),
               .stack = site,
               .graph = captured});
    return nullptr;
  };
  for (int attempt = 0; attempt < 100; ++attempt) {
    compile_log.begin_attempt(attempt);
    runtime::failed_stage() = "";
    log_step("dynamo", [&] { return "Step 1: torchdynamo start tracing " + function_in_file(place); });
    std::shared_ptr<const int64_t> alive;
    bool must_not_break = context.fullgraph;
    try {
      runtime::StageTime capture_time("compile.capture");
      capture::Trace trace;
      {
        const capture::BreakRegions regions;
        capture::Capture capture(start, segment.known_breaks, segment.memory);
        set_up(capture, context, segment, start);
        if (compile_log.wants_any({"trace_source", "trace_bytecode"})) capture.tracer = &instruction_log;
        capture.note_guard_places();
        alive = capture.alive_fakes();
        try {
          trace = capture.run();
          must_not_break |= capture::BreakRegions::is_error();
        } catch (const capture::Restart&) {
          segment.known_breaks.insert(capture.restart());
          continue;
        } catch (const capture::Retry&) {
          continue;
        } catch (const capture::Interrupted&) {
          interrupt = capture.take_interrupt();
          throw;
        } catch (...) {
          site = capture.site();
          said_compiling = capture.has_said_compiling();
          throw;
        }
      }
      if (*alive != 0) {
        return fails("leaked fake tensors", std::to_string(*alive) + " fake tensors outlive the capture");
      }
      if (is_only_looked_at(segment)) return nullptr;
      const double capture_seconds = capture_time.end();
      log_step("dynamo", [&] { return "Step 1: torchdynamo done tracing " + function_in_file(place); });
      if (trace.plan->exit) {
        report_exit(context, *trace.plan->exit);
        if (must_not_break) {
          raise("Unsupported", break_text(*trace.plan->exit));
          return nullptr;
        }
      }
      ++stats().frames;
      history().captured(place, trace.codes);
      for (const std::string& op : trace.counters.meta_ops) ++stats().meta_kernels[op];
      compile_trace.captured(trace);
      const KeptForTrace kept(compile_trace, trace.graph);
      log_sizes(trace.size_log);
      if (!trace.violation.empty()) {
        raise("ConstraintViolation", trace.violation);
        return nullptr;
      }
      if (log_enabled("guards")) log("guards", "GUARDS:\n\n" + trace.guards->print_tree());
      if (context.report) {
        context.report->guards.push_back(trace.guards->print());
        context.report->graph_texts.push_back(graph::print(trace.graph));
      }
      watched = watched_weights(tensors_of(trace.example_inputs));
      if (!trace.graph.aten_nodes.empty() || !trace.graph.outputs.empty()) {
        try {
          if (!compile_backend(context, trace, start)) {
            if (!settings().suppress_errors || context.fullgraph || !PyErr_ExceptionMatches(PyExc_Exception))
              return nullptr;
            const Ref raised = take_error_with_traceback();
            const Ref text = Ref::steal(PyObject_Str(raised.get()));
            fall_back(context, segment, place,
                      {.cause = "backend error",
                       .message = text ? PyUnicode_AsUTF8(text.get()) : "",
                       .stage = "compile.backend",
                       .stack = {},
                       .exception = raised});
            return nullptr;
          }
        } catch (const std::exception&) {
          captured = graph::print(trace.graph);
          throw;
        }
      }
      if (context.report) {
        context.report->capture_seconds += capture_seconds;
        context.report->plan_texts.push_back(trace.plan->print());
      }
      ++stats().cache_entries;
      if (compile_log.wants("bytecode")) log_bytecode(place.info->code, trace.plan->print());
      auto entry =
          std::make_unique<Entry>(Place(start.info->code, start.instr, context.instance), compile_log.id().text());
      entry->guards = std::move(trace.guards);
      entry->plan = std::move(trace.plan);
      entry->circumstances = circumstances;
      entry->watched = std::move(watched);
      compile_trace.finished(*entry->guards, roots);
      segment.entries.insert(segment.entries.begin(), std::move(entry));
      return segment.entries.front().get();
    } catch (const capture::Interrupted&) {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(interrupt.get())), interrupt.get());
      return nullptr;
    } catch (const capture::Abandon& abandon) {
      return fails(break_info(abandon.reason).name, abandon.message);
    } catch (const PythonError&) {
      // The program itself raises: CPython runs it and raises the real thing.
      expect_raise(segment, site);
      segment.raised_as_compiled = said_compiling;
      return nullptr;
    } catch (const std::exception& error) {
      PyErr_Clear();
      return fails("internal error", error.what());
    }
  }
  return fails("internal error", "the segment was restarted too often");
}

/// Calls a hook of compiles. False: it raised.
static bool call_hook(const Ref& hook, const std::string& id) {
  return !hook || Ref::steal(PyObject_CallFunction(hook.get(), "s", id.c_str()));
}

/// A compile, of which the hooks are told.
static Entry* compile_with_hooks(Context& context, Segment& segment, const capture::Start& start) {
  const CompileHooks hooks = compile_hooks();
  if (segment.given_up || (!hooks.start && !hooks.end)) return compile_segment(context, segment, start);
  const std::string id = std::to_string(segment.frame_id < 0 ? stats().frame_ids : segment.frame_id) + "/" +
                         std::to_string(segment.compiles);
  if (!call_hook(hooks.start, id)) return nullptr;
  Entry* entry = compile_segment(context, segment, start);
  const SavedError saved;
  if (!call_hook(hooks.end, id)) PyErr_WriteUnraisable(hooks.end.get());
  return entry;
}

Entry* entry_for(Context& context, Segment& segment, const capture::Start& start, PyObject* const** slots) {
  const guards::Roots roots{start.function, start.slots, start.slots + start.info->nlocals};
  if (Entry* entry = find_entry(segment, roots, slots)) return entry;
  if (static_cast<int64_t>(segment.entries.size()) < entry_limit(context)) {
    if (Entry* entry = adopt_entry(context, segment, start, slots)) return entry;
  }
  for (int attempt = 0; attempt < 3; ++attempt) {
    Entry* captured = compile_with_hooks(context, segment, start);
    if (!captured) return nullptr;
    if (Entry* entry = find_entry(segment, roots, slots)) return entry;
    // What was captured changed meanwhile: by another thread, a signal handler, a finaliser.
  }
  const CodePlace place = place_of(context, start);
  fall_back(context, segment, place,
            {.cause = "unstable state",
             .message = "what it reads changes while it is captured: " +
                        failure_text(place, guards::failure_of(*segment.entries.front()->guards, roots), 2)});
  return nullptr;
}

}  // namespace magneto::dispatch
