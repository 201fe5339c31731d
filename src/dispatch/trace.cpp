#include "dispatch/trace.h"

#include <algorithm>

#include "python/imported.h"
#include "python/text.h"

namespace magneto::dispatch {
namespace {

thread_local CompileTrace* current_trace = nullptr;

template <typename... Arguments>
void call_trace(const char* function, const char* format, Arguments... arguments) {
  static constinit Imported module("magneto._trace");
  call_sink(module.get(), function, format, arguments...);
}

}  // namespace

CompileTrace::CompileTrace(const CompileLog& log, const capture::Start& start)
    : log_(log), code_(start.info->code), on_(log.wants("trace")), outer_(current_trace) {
  current_trace = this;
  if (!on_) return;
  runs_.emplace();
  call_trace("begin", "OiO", code_, start.info->instrs[start.instr].line, log_.id().tuple().get());
}

CompileTrace::~CompileTrace() {
  current_trace = outer_;
  if (!on_) return;
  SavedError saved;
  call_trace("end", "OOOO", code_, outcome().get(), stage_runs().get(), log_.id().tuple().get());
}

CompileTrace* CompileTrace::current() { return current_trace; }

void CompileTrace::captured(const capture::Trace& trace) {
  if (!on_) return;
  const std::string tree = trace.guards->print_tree();
  guards_ = static_cast<size_t>(std::ranges::count(tree, '\n'));
  operators_ = trace.graph.torch_nodes.size();
  nodes_ = operators_ + trace.graph.inputs.size() + 1;
  inputs_ = trace.graph.inputs.size();
  call_trace("guards", "OO", text_object(tree).get(), log_.id().tuple().get());
  call_trace("bytecode", "OOO", code_, text_object(trace.plan->print()).get(), log_.id().tuple().get());
}

void CompileTrace::graph(PyObject* module) { call_trace("graph", "OO", module, log_.id().tuple().get()); }

void CompileTrace::stage(const char* name, const std::string& text) {
  call_trace("stage", "sOO", name, text_object(text).get(), log_.id().tuple().get());
}

void CompileTrace::broken(const std::string& reason, const std::string& text) {
  if (!on_) return;
  break_reason_ = reason;
  call_trace("artifact", "sOO", "dynamo_graph_break_reason", text_object(text).get(), log_.id().tuple().get());
}

void CompileTrace::recompiled(const std::string& reasons) {
  if (!on_) return;
  call_trace("artifact", "sOO", "recompile_reasons", text_object(reasons).get(), log_.id().tuple().get());
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
  if (!break_reason_.empty() && PyList_Append(breaks.get(), text_object(break_reason_).get()) < 0) throw PythonError{};
  return checked(Py_BuildValue("{s:n,s:n,s:n,s:n,s:O,s:O,s:O}", "guard_count", guards_, "graph_op_count", operators_,
                               "graph_node_count", nodes_, "graph_input_count", inputs_, "restart_reasons",
                               breaks.get(), "fail_type", or_none(fail_type_).get(), "fail_reason",
                               or_none(fail_reason_).get()));
}

Ref CompileTrace::stage_runs() const {
  Ref list = checked(PyList_New(0));
  for (const runtime::StageRun& run : runs_->all()) {
    Ref item = checked(Py_BuildValue("(sddL)", run.stage, run.begin, run.seconds, run.peak));
    if (PyList_Append(list.get(), item.get()) < 0) throw PythonError{};
  }
  return list;
}

}  // namespace magneto::dispatch
