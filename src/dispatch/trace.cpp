#include "dispatch/trace.h"

#include <list>
#include <set>

#include "autograd/joint.h"
#include "graph/gm.h"
#include "graph/text.h"
#include "guards/data.h"
#include "guards/text.h"
#include "python/imported.h"
#include "python/text.h"
#include "support/json.h"

namespace magneto::dispatch {
namespace {

thread_local CompileTrace* current_trace = nullptr;

struct WatchedProgram {
  CompileId id;
  std::shared_ptr<runtime::ProgramWatch> program;
};
std::vector<WatchedProgram>& watched_programs() {
  static auto* programs = new std::vector<WatchedProgram>;
  return *programs;
}

// What is written later: making it takes longer than the rest of a trace.

struct KeptGraph {
  CompileId id;
  graph::Graph graph;
  std::string self;
};
struct KeptGraphs {
  std::vector<KeptGraph> graphs;
  size_t operators = 0;
};
constexpr size_t kMostKeptOperators = 50'000;
KeptGraphs& kept_graphs() {
  static auto* kept = new KeptGraphs;
  return *kept;
}

struct KeptGuards {
  KeptGuards(CompileId id, guards::GuardProgram& program) : id(id), program(&program) {
    program.on_end = [this] { end(); };
  }
  KeptGuards(const KeptGuards&) = delete;
  ~KeptGuards() {
    if (program) program->on_end = nullptr;
  }
  void end() {
    if (!program) return;
    SavedError saved;
    json = guards::data(*program);
    std::exchange(program, nullptr)->on_end = nullptr;
  }

  CompileId id;
  guards::GuardProgram* program;  // null: it has ended
  std::string json;
};
std::list<KeptGuards>& kept_guards() {
  static auto* kept = new std::list<KeptGuards>;
  return *kept;
}

void append(const Ref& list, const Ref& item) {
  if (PyList_Append(list.get(), item.get()) < 0) throw PythonError{};
}

template <typename... Parts>
void append_with_id(const Ref& list, const CompileId& id, const Parts&... parts) {
  append(list, checked(PyTuple_Pack(1 + sizeof...(parts), id.tuple().get(), parts.get()...)));
}

template <typename... Arguments>
void call_trace(const char* function, const char* format, Arguments... arguments) {
  static constinit Imported module("magneto._trace");
  call_sink(module.get(), function, format, arguments...);
}

/// Of a method the class of its object. Empty for functions, and where a segment begins between a module's caller and
/// its `forward`.
std::string class_of_self(const capture::Start& start) {
  const std::string_view function = text_argument(start.info->code->co_name);
  if (start.instr > 0 && (function == "_wrapped_call_impl" || function == "_call_impl")) return {};
  PyObject* const names = start.info->code->co_localsplusnames;
  if (start.info->code->co_argcount == 0 || !start.slots[0] || PyCell_Check(start.slots[0])) return {};
  if (text_argument(PyTuple_GET_ITEM(names, 0)) != "self") return {};
  return guards::type_name(Py_TYPE(start.slots[0]));
}

/// The captured graph: inputs, torch calls with the user's lines, the ATen operators below them.
std::string graph_data(const graph::Graph& graph, const std::string& self) {
  graph::Json json;
  json.open('{').field("self", self).key("inputs").open('[');
  for (const graph::ValueId id : graph.inputs) {
    json.open('[').add(id).add(graph.values[id].name).add(graph::type_text(graph.values[id].meta)).close(']');
  }
  json.close(']').key("torch").open('[');
  const std::vector<std::string> calls = graph::torch_lines(graph);
  for (size_t i = 0; i < calls.size(); ++i) {
    const graph::TorchNode& node = graph.torch_nodes[i];
    json.open('[').add(calls[i]).add(node.file).add(node.line).add(node.function).close(']');
  }
  json.close(']').key("aten").open('[');
  const std::vector<std::string> operators = graph::aten_lines(graph);
  for (size_t i = 0; i < operators.size(); ++i) {
    json.open('[').add(operators[i]).add(graph.aten_nodes[i].torch_node).close(']');
  }
  return json.close(']').key("outputs").list(graph.outputs).close('}').take();
}

std::string break_data(const runtime::Exit& exit, const std::string& text) {
  graph::Json json;
  json.open('{').field("reason", break_info(exit.reason).name).field("message", exit.message).field("text", text);
  json.key("stack").open('[');
  for (const runtime::FrameState& frame : exit.frames) {
    PyCodeObject* code = frame.info->code;
    json.open('[').add(text_argument(code->co_filename)).add(frame.info->instrs[frame.instr].line);
    json.add(text_argument(code->co_name)).close(']');
  }
  return json.close(']').close('}').take();
}

}  // namespace

CompileTrace::CompileTrace(const CompileLog& log, const capture::Start& start, const CodePlace& place)
    : log_(log), code_(place.info->code), on_(log.wants("trace")), outer_(current_trace) {
  current_trace = this;
  if (!on_) return;
  runs_.emplace();
  self_ = class_of_self(start);
  call_trace("begin", "OiO", code_, place.line(), log_.id().tuple().get());
}

CompileTrace::~CompileTrace() {
  current_trace = outer_;
  if (!on_) return;
  SavedError saved;
  if (finished_) {
    if (const std::string costs = guards::costs(*finished_, roots_); !costs.empty()) data("guard_costs", costs);
  }
  call_trace("end", "OOOO", code_, outcome().get(), stage_runs().get(), log_.id().tuple().get());
}

CompileTrace* CompileTrace::current() { return current_trace; }

void CompileTrace::captured(const capture::Trace& trace) {
  if (!on_) return;
  guards_ = guards::count(*trace.guards);
  kept_guards().emplace_back(log_.id(), *trace.guards);
  operators_ = trace.graph.torch_nodes.size();
  nodes_ = operators_ + trace.graph.inputs.size() + 1;
  inputs_ = trace.graph.inputs.size();
  std::set<std::string> files{std::string(text_argument(code_->co_filename))};
  for (const graph::TorchNode& node : trace.graph.torch_nodes) files.insert(node.file);
  Ref names = checked(PyList_New(0));
  for (const std::string& file : files) append(names, text_object(file));
  call_trace("sources", "OO", names.get(), log_.id().tuple().get());
  call_trace("bytecode", "OOO", code_, text_object(trace.plan->print()).get(), log_.id().tuple().get());
}

void CompileTrace::watch(std::shared_ptr<runtime::ProgramWatch> program) {
  if (!on_) return;
  call_trace("program", "OOO", text_object(std::exchange(program->plan, {})).get(),
             text_object(std::exchange(program->data, {})).get(), log_.id().tuple().get());
  watched_programs().push_back({log_.id(), std::move(program)});
}

void CompileTrace::finished(guards::GuardProgram& guards, const guards::Roots& roots) {
  finished_ = &guards;
  roots_ = roots;
}

void CompileTrace::keep(graph::Graph graph) {
  if (!on_) return;
  KeptGraphs& kept = kept_graphs();
  kept.operators += 1 + graph.torch_nodes.size();
  kept.graphs.push_back({log_.id(), std::move(graph), self_});
  if (kept.operators > kMostKeptOperators) call_trace("write_texts", nullptr);
}

Ref take_traced_graphs() {
  Ref list = checked(PyList_New(0));
  for (const auto& [id, graph, self] : std::exchange(kept_graphs(), {}).graphs) {
    append_with_id(list, id, graph::graph_module(graph, true), text_object(graph_data(graph, self)));
  }
  return list;
}

Ref take_traced_guards() {
  std::list<KeptGuards> taken;
  taken.swap(kept_guards());
  Ref list = checked(PyList_New(0));
  for (KeptGuards& kept : taken) {
    kept.end();
    append_with_id(list, kept.id, text_object(kept.json));
  }
  return list;
}

Ref traced_runs() {
  const std::vector<WatchedProgram> programs = watched_programs();  // making an object may run code of the program
  Ref list = checked(PyList_New(0));
  for (const WatchedProgram& watched : programs) {
    graph::Json json;
    json.open('{').key("steps").open('[');
    for (const runtime::StepTimes::Row& row : watched.program->times.rows()) {
      json.open('[').add(row.runs).add(row.least).add(row.sum).close(']');
    }
    append_with_id(list, watched.id, text_object(json.close(']').close('}').take()));
  }
  return list;
}

void forget_traced() {
  watched_programs().clear();
  kept_graphs() = {};
  kept_guards().clear();
}

void CompileTrace::stage(const char* name, const std::string& text) {
  call_trace("stage", "sOO", name, text_object(text).get(), log_.id().tuple().get());
}

void CompileTrace::data(const char* name, const std::string& json) {
  call_trace("data", "sOO", name, text_object(json).get(), log_.id().tuple().get());
}

void CompileTrace::broken(const runtime::Exit& exit, const std::string& text) {
  if (!on_) return;
  break_reason_ = std::string(break_info(exit.reason).name) + ": " + exit.message;
  data("break", break_data(exit, text));
  call_trace("artifact", "sOO", "dynamo_graph_break_reason", text_object(text).get(), log_.id().tuple().get());
}

void CompileTrace::recompiled(const std::string& reasons, const std::vector<FailedEntry>& entries) {
  if (!on_) return;
  graph::Json json;
  json.open('[');
  for (const FailedEntry& entry : entries) {
    json.open('{')
        .field("entry", entry.id)
        .field("condition", entry.condition)
        .key("failures")
        .list(entry.failures)
        .key("places")
        .list(entry.places)
        .close('}');
  }
  data("recompile", json.close(']').take());
  call_trace("artifact", "sOO", "recompile_reasons", text_object(reasons).get(), log_.id().tuple().get());
}

void CompileTrace::trains(const graph::Graph& graph, const autograd::Joint& joint) {
  if (!on_) return;
  graph::Json json;
  json.open('{').key("backwards").open('[');
  for (const autograd::Backward& backward : joint.backwards) {
    json.open('{').field("saved_bytes", backward.saved_bytes).field("eager_saved_bytes", backward.eager_saved_bytes);
    json.field("recomputed", backward.recomputed);
    json.field("bucket_parts", backward.ends.empty() ? 0 : static_cast<int64_t>(backward.ends.size()) + 1)
        .key("saved")
        .open('[');
    for (const graph::ValueId id : backward.saved) {
      const graph::Value& value = graph.values[id];
      json.open('[').add(id).add(value.name).add(graph::type_text(value.meta)).add(value.producer).close(']');
    }
    json.close(']').close('}');
  }
  data("training", json.close(']').close('}').take());
}

void CompileTrace::failed(const std::string& cause, const std::string& message) {
  if (!on_) return;
  fail_type_ = cause;
  fail_reason_ = message;
  call_trace("artifact", "sOO", "dynamo_error", text_object(cause + ": " + message).get(), log_.id().tuple().get());
}

Ref CompileTrace::outcome() const {
  const auto or_none = [](const std::string& text) { return text.empty() ? Ref::borrow(Py_None) : text_object(text); };
  Ref breaks = checked(PyList_New(0));
  if (!break_reason_.empty()) append(breaks, text_object(break_reason_));
  return checked(Py_BuildValue("{s:n,s:n,s:n,s:n,s:O,s:O,s:O}", "guard_count", guards_, "graph_op_count", operators_,
                               "graph_node_count", nodes_, "graph_input_count", inputs_, "restart_reasons",
                               breaks.get(), "fail_type", or_none(fail_type_).get(), "fail_reason",
                               or_none(fail_reason_).get()));
}

Ref CompileTrace::stage_runs() const {
  Ref list = checked(PyList_New(0));
  for (const runtime::StageRun& run : runs_->all()) {
    append(list, checked(Py_BuildValue("(sddL)", run.stage, run.begin, run.seconds, run.peak)));
  }
  return list;
}

}  // namespace magneto::dispatch
