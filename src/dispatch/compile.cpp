// From a frame's state to an entry of its cache: capture, backend, messages.
#include <ATen/Context.h>

#include <algorithm>

#include "capture/marks.h"
#include "compiler/pipeline.h"
#include "dispatch/block.h"
#include "dispatch/capture_setup.h"
#include "dispatch/context.h"
#include "dispatch/frame_record.h"
#include "dispatch/limits.h"
#include "dispatch/log.h"
#include "dispatch/observers.h"
#include "dispatch/report.h"
#include "dispatch/repro.h"
#include "dispatch/siblings.h"
#include "dispatch/trace.h"
#include "graph/gm.h"
#include "guards/data.h"
#include "observe/history.h"
#include "observe/profiler_range.h"
#include "observe/progress.h"
#include "observe/stats.h"
#include "python/abi/c_stack.h"
#include "python/errors.h"
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
  Py_VISIT(backend_callable.get());
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
  if (context_.calls_ == 1) forget_frames(context_);
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

std::vector<PyObject*> tensors_of(const std::vector<Ref>& inputs) {
  std::vector<PyObject*> tensors;
  for (const Ref& input : inputs) tensors.push_back(input.get());
  return tensors;
}

using compiler::Backend;

/// Measuring is asked for, and allowed.
runtime::Tuning tuning_of(const Context& context, const compiler::Request& request) {
  runtime::Tuning tuning;
  const bool deterministic =
      context.settings[&Settings::deterministic] || at::globalContext().deterministicAlgorithms();
  if (deterministic || !context.settings[&Settings::max_autotune]) return tuning;
  tuning.seconds = static_cast<double>(context.settings[&Settings::max_autotune_seconds]);
  tuning.takes = settings().max_autotune_takes;
  tuning.name = request.place;
  for (const Ref& input : request.inputs) tuning.inputs.push_back(unpack_tensor(input.get()));
  return tuning;
}

/// The captured graph as a torch.fx.GraphModule, for the backend and for people; null: nobody wants it.
Ref module_of(const Context& context, const graph::Graph& graph) {
  const bool is_logged = CompileLog::current()->wants_any({"graph", "graph_code", "graph_sizes"});
  if (context.backend->level != Backend::Level::Module && !is_logged && !context.report &&
      settings().repro_after != "dynamo") {
    return {};
  }
  Ref module = graph::graph_module(graph, is_logged);
  if (context.report) {
    context.report->graphs.push_back(module);
    std::vector<Ref> ops;
    for (const graph::TorchNode& node : graph.torch_nodes) ops.push_back(node.target);
    context.report->ops.push_back(std::move(ops));
  }
  if (is_logged) log_graph("__compiled_fn_" + std::to_string(stats().graphs), module.get());
  return module;
}

/// Gives the plan its computation. False: the backend failed, with the error set.
bool apply_backend(const Context& context, capture::Trace& trace, const capture::Start& start,
                   observe::Events& events) {
  const Ref module = module_of(context, trace.graph);
  const bool is_users = context.backend->operators == Backend::Operators::Users;
  compiler::Request request{.graph = trace.graph,
                            .backend = *context.backend,
                            .callable = context.backend_callable.get(),
                            .module = module.get(),
                            .inputs = trace.example_inputs,
                            .watched = watched_weights(tensors_of(trace.example_inputs)),
                            .needs_grad = trace.needs_grad,
                            .joint = trace.joint,
                            .no_joint = trace.no_joint,
                            .start = place_of(context, start),
                            .place = place_text(place_of(context, start)),
                            .guards = is_users ? trace.guards->print() : "",
                            .sizes = guards::assumed_sizes(*trace.guards),
                            .assumptions = trace.assumptions,
                            .disk_cache = context.settings[&Settings::disk_cache]};
  request.tuning = tuning_of(context, request);
  try {
    try_graph(context, request);
    trace.plan->computation = compiler::compile(request, events);
  } catch (const PythonError&) {
    return false;
  }
  return true;
}

/// The graph's part of a compile. False: the backend failed, with the error set.
bool compile_backend(Context& context, capture::Trace& trace, const capture::Start& start) {
  ++stats().graphs;
  stats().ops += static_cast<int64_t>(trace.graph.torch_nodes.size());
  const char* function = PyUnicode_AsUTF8(place_of(context, start).info->code->co_name);
  GraphObservers observers(context, context.name.empty() ? function : context.name);
  observe::Events& events = observers.events;
  events.offer(graph::Stage::captured, [&] { return graph::print(trace.graph); });
  events.offer(graph::Stage::guards, [&] { return trace.guards->print(); });
  const std::string backend = context.backend->level == Backend::Level::Module ? "of the user" : context.backend->name;
  log_step("dynamo", [&] { return "Step 2: calling compiler function " + backend; });
  runtime::RecordedRuns runs;
  runtime::StageTime time("compile.backend");
  if (!apply_backend(context, trace, start, events)) return false;
  const double seconds = time.end();
  if (context.report) context.report->backend_seconds += seconds;
  events.offer(graph::Stage::profile, [&] { return runs.print(); });
  log_step("dynamo", [&] { return "Step 2: done compiler function " + backend; });
  return true;
}

/// Its text reads no stand-ins, which belong to a capture that has ended.
bool is_of_constants(PyObject* raised) {
  const Ref args = Ref::steal(PyObject_GetAttr(raised, MAGNETO_STR("args")));
  if (!args || !PyTuple_CheckExact(args.get())) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args.get()); ++i) {
    PyObject* item = PyTuple_GET_ITEM(args.get(), i);
    if (!PyUnicode_Check(item) && !PyLong_Check(item) && !PyFloat_Check(item) && item != Py_None) return false;
  }
  return true;
}

/// The program itself raised in the capture: CPython runs it, and is expected to raise the same; clears the error.
void expect_raise(Segment& segment, const std::vector<CodePlace>& site) {
  const Ref raised = take_error();
  const Ref text = is_of_constants(raised.get()) ? Ref::steal(PyObject_Str(raised.get())) : Ref();
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

/// Captures a segment and adds its entry.
class SegmentCompile {
 public:
  SegmentCompile(Context& context, Segment& segment, const capture::Start& start, const CodePlace& place)
      : context_(context),
        segment_(segment),
        start_(start),
        place_(place),
        roots_{start.function, start.slots, start.slots + start.info->nlocals},
        log_(next_id(segment)),
        trace_(log_, start, place) {}
  SegmentCompile(const SegmentCompile&) = delete;

  /// Null as for `entry_for`.
  Entry* run() {
    const int64_t captures = captures_at({start_.info->code, start_.instr, context_.instance});
    if (!fx_tracing_allows(place_)) return nullptr;
    if (!stance_allows(segment_, place_, roots_) || !allow_another(context_, segment_, place_, captures, roots_))
      return nullptr;
    const OutsideBlocks outside;
    const runtime::Progress progress(place_text(place_));
    runtime::StageTime whole("compile");
    const DeclaredShapes declared(context_, start_);
    if (!declared.violation().empty()) return raise("ConstraintViolation", declared.violation()), nullptr;
    circumstances_ = std::make_shared<const Circumstances>(circumstances_of(start_));
    Entry* entry = attempts();
    if (PyErr_Occurred() || !failure_.empty()) record_frame(context_, start_, failure_);
    return entry;
  }

 private:
  /// Captures, and begins anew as long as that has found out more of the program.
  Entry* attempts() {
    for (int attempt = 0; attempt < 100; ++attempt) {
      log_.begin_attempt(attempt);
      runtime::failed_stage() = "";
      try {
        std::optional<capture::Trace> captured = capture();
        if (leaked_ != 0) {
          return fails("leaked fake tensors", std::to_string(leaked_) + " fake tensors outlive the capture");
        }
        if (captured && is_only_looked_at(segment_)) return nullptr;
        if (captured) return add_entry(*captured);
        capture::make_first_calls(segment_.memory);
      } catch (...) {
        return failed();
      }
    }
    return fails("internal error", "the segment was restarted too often");
  }

  /// Nothing: more is known now, and it is to begin anew.
  std::optional<capture::Trace> capture() {
    log_step("dynamo", [&] { return "Step 1: torchdynamo start tracing " + function_in_file(place_); });
    runtime::StageTime time("compile.capture");
    std::shared_ptr<const int64_t> alive;
    std::optional<capture::Trace> trace = interpret(alive);
    if (!trace) return trace;
    leaked_ = *alive;
    if (leaked_ != 0) return std::nullopt;
    capture_seconds_ = time.end();
    log_step("dynamo", [&] { return "Step 1: torchdynamo done tracing " + function_in_file(place_); });
    return trace;
  }

  /// `*alive`: the fake tensors of the capture, to be counted when it is gone.
  std::optional<capture::Trace> interpret(std::shared_ptr<const int64_t>& alive) {
    const capture::BreakRegions regions;
    capture::Capture capture(start_, segment_.known_breaks, segment_.memory);
    set_up(capture, context_, segment_, start_);
    if (log_.wants_any({"trace_source", "trace_bytecode"})) capture.options.tracer = &instruction_log_;
    capture.note_guard_places();
    alive = capture.alive_fakes();
    try {
      capture::Trace trace = capture.run();
      must_not_break_ = context_.fullgraph || capture::BreakRegions::is_error();
      return trace;
    } catch (const capture::Restart&) {
      segment_.known_breaks.insert(capture.restart());
      return std::nullopt;
    } catch (const capture::Retry&) {
      return std::nullopt;
    } catch (const capture::Interrupted&) {
      interrupt_ = capture.take_interrupt();
      throw;
    } catch (...) {
      site_ = capture.site();
      said_compiling_ = capture.has_said_compiling();
      throw;
    }
  }

  /// The entry of a capture. Null: it must not be used, with an error set or the segment left to CPython.
  Entry* add_entry(capture::Trace& trace) {
    if (trace.plan->exit) {
      report_exit(context_, *trace.plan->exit);
      if (must_not_break_) {
        raise("Unsupported", break_text(*trace.plan->exit));
        return nullptr;
      }
    }
    if (trace.plan->exit) remember_frame(context_, start_, trace.plan->exit.get());
    tell_captured(trace);
    const KeptForTrace kept(trace_, trace.graph);
    if (!trace.violation.empty()) {
      raise("ConstraintViolation", trace.violation);
      return nullptr;
    }
    tell_guards(trace);
    std::vector<bool> watched = watched_weights(tensors_of(trace.example_inputs));
    if (!run_backend(trace)) return nullptr;
    if (context_.report) {
      context_.report->capture_seconds += capture_seconds_;
      context_.report->plan_texts.push_back(trace.plan->print());
    }
    ++stats().cache_entries;
    if (log_.wants("bytecode")) log_bytecode(place_.info->code, trace.plan->print());
    auto entry = std::make_unique<Entry>(Place(start_.info->code, start_.instr, context_.instance), log_.id().text());
    entry->guards = std::move(trace.guards);
    entry->plan = std::move(trace.plan);
    entry->circumstances = circumstances_;
    entry->watched = std::move(watched);
    trace_.finished(*entry->guards, roots_);
    segment_.entries.insert(segment_.entries.begin(), std::move(entry));
    return segment_.entries.front().get();
  }

  void tell_captured(const capture::Trace& trace) {
    ++stats().frames;
    history().captured(place_, trace.codes);
    for (const std::string& op : trace.counters.meta_ops) ++stats().meta_kernels[op];
    trace_.captured(trace);
    report_sizes(place_, trace.size_log);
  }

  void tell_guards(const capture::Trace& trace) {
    if (log_enabled("guards")) log("guards", "GUARDS:\n\n" + trace.guards->print_tree());
    if (!context_.report) return;
    context_.report->guards.push_back(trace.guards->print());
    context_.report->graph_texts.push_back(graph::print(trace.graph));
  }

  /// False: it raised, with the error set or said.
  bool run_backend(capture::Trace& trace) {
    if (trace.graph.aten_nodes.empty() && trace.graph.outputs.empty()) return true;
    try {
      if (compile_backend(context_, trace, start_)) return true;
    } catch (const std::exception&) {
      graph_text_ = graph::print(trace.graph);
      throw;
    }
    if (!settings().suppress_errors || context_.fullgraph || !PyErr_ExceptionMatches(PyExc_Exception)) return false;
    const Ref raised = take_error_with_traceback();
    const Ref text = Ref::steal(PyObject_Str(raised.get()));
    const std::string message = text ? PyUnicode_AsUTF8(text.get()) : "";
    failure_ = "backend error: " + message;
    fall_back(
        context_, segment_, place_,
        {.cause = "backend error", .message = message, .stage = "compile.backend", .stack = {}, .exception = raised});
    return false;
  }

  /// After the exception that is being handled.
  Entry* failed() {
    try {
      throw;
    } catch (const capture::Interrupted&) {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(interrupt_.get())), interrupt_.get());
      return nullptr;
    } catch (const capture::Abandon& abandon) {
      return fails(break_info(abandon.reason).name, abandon.message);
    } catch (const PythonError&) {
      // The program itself raises: CPython runs it and raises the real thing.
      remember_frame(context_, start_, nullptr);
      expect_raise(segment_, site_);
      segment_.raised_as_compiled = said_compiling_;
      return nullptr;
    } catch (const std::exception& error) {
      PyErr_Clear();
      return fails("internal error", error.what());
    }
  }

  Entry* fails(std::string cause, std::string message) {
    failure_ = cause + ": " + message;
    fall_back(context_, segment_, place_,
              {.cause = std::move(cause),
               .message = std::move(message),
               .stage = runtime::failed_stage(),
               .stack = site_,
               .graph = graph_text_});
    return nullptr;
  }

  Context& context_;
  Segment& segment_;
  const capture::Start& start_;
  const CodePlace place_;
  const guards::Roots roots_;
  CompileLog log_;
  CompileTrace trace_;
  InstructionLog instruction_log_{log_.wants("trace_source"), log_.wants("trace_bytecode")};
  std::shared_ptr<const Circumstances> circumstances_;
  double capture_seconds_ = 0;
  int64_t leaked_ = 0;  // fake tensors
  bool must_not_break_ = false;
  // Of a capture that failed: where the program was, whether it had heard that it is being compiled, what had been
  // captured, and what interrupted it.
  std::vector<CodePlace> site_;
  bool said_compiling_ = false;
  std::string graph_text_;
  std::string failure_;  // in a line
  Ref interrupt_;
};

/// Null as for `entry_for`.
static Entry* compile_segment(Context& context, Segment& segment, const capture::Start& start) {
  if (segment.given_up) return nullptr;
  const CodePlace place = place_of(context, start);
  if (c_stack_is_low()) {
    report_skipped(place, "the calls go too deep for a capture");
    return nullptr;
  }
  return SegmentCompile(context, segment, start, place).run();
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
