#include "dispatch/report.h"

#include <set>

#include "capture/hints.h"
#include "dispatch/frame_record.h"
#include "dispatch/log.h"
#include "dispatch/trace.h"
#include "observe/history.h"
#include "observe/stats.h"
#include "python/imported.h"
#include "python/text.h"
#include "runtime/program/promise.h"

namespace magneto::dispatch {
namespace {

/// What has been said once: kind and cause.
std::set<std::pair<std::string, std::string>>& said() {
  static auto* texts = new std::set<std::pair<std::string, std::string>>;
  return *texts;
}

/// True the first time since the last reset.
bool first_time(std::string kind, std::string cause) {
  return said().emplace(std::move(kind), std::move(cause)).second;
}

/// A text that magneto/_messages.py words; `plain` where that fails.
template <typename... Arguments>
std::string worded(const std::string& plain, const char* function, const char* format, Arguments... arguments) {
  static constinit Imported module("magneto._messages");
  const Ref text = call_sink(module.get(), function, format, arguments...);
  return text && PyUnicode_Check(text.get()) ? std::string(text_argument(text.get())) : plain;
}

/// [(code, offset of the instruction, line)].
Ref stack_list(const std::vector<CodePlace>& stack) {
  Ref list = checked(PyList_New(0));
  for (const CodePlace& place : stack) {
    Ref item =
        checked(Py_BuildValue("(Oii)", place.info->code, place.info->instrs[place.instr].offset * 2, place.line()));
    if (PyList_Append(list.get(), item.get()) < 0) throw PythonError{};
  }
  return list;
}

std::vector<CodePlace> stack_of(const runtime::Exit& exit) {
  std::vector<CodePlace> stack;
  for (const runtime::FrameState& frame : exit.frames) stack.push_back({frame.info, frame.instr});
  return stack;
}

/// A side exit that is no graph break: a loop goes on after an earlier exit, or a number of it is needed.
bool follows_another(const runtime::Exit& exit) {
  return exit.reason == BreakReason::OpaqueIterator || exit.reason == BreakReason::ChangingValue;
}

/// A text with the user's expressions for what lay on the value stack where the segment begins.
std::string readable(const CodePlace& start, const std::string& text) {
  if (text.find("___stack") == text.npos) return text;
  return worded(text, "readable", "OOi", text_object(text).get(), start.info->code,
                start.info->instrs[start.instr].start * 2);
}

/// What is said of an exit, with the user's expressions.
std::string message_of(const runtime::Exit& exit) {
  const runtime::FrameState& outermost = exit.frames.front();
  return readable({outermost.info, outermost.instr}, exit.message);
}

std::string reason_of(const runtime::Exit& exit) {
  return std::string(break_info(exit.reason).name) + ": " + message_of(exit);
}

/// A guard that fails, without the values that differ from time to time: "L['x'] size mismatch at index 0".
std::string without_values(const std::string& failure) {
  return failure.substr(
      0, std::min({failure.find(". expected "), failure.find(": expected "), failure.find(": actual ")}));
}

}  // namespace

std::string break_text(const runtime::Exit& exit) {
  const BreakInfo info = break_info(exit.reason, exit.message);
  return worded(reason_of(exit), "graph_break", "sOssO", info.name, text_object(message_of(exit)).get(),
                info.explanation, info.hint, stack_list(stack_of(exit)).get());
}

void report_exit(Context& context, const runtime::Exit& exit) {
  const std::string reason = reason_of(exit);
  if (follows_another(exit)) {
    ++stats().other_exits[reason];
    return;
  }
  ++stats().breaks;
  ++stats().break_reasons[reason];
  const std::vector<CodePlace> stack = stack_of(exit);
  const int64_t count = history().note(Event::graph_break, stack.back(), reason);
  if (context.report) {
    Report::Break entry;
    entry.reason = reason;
    for (const CodePlace& place : stack) {
      PyCodeObject* code = place.info->code;
      entry.stack.emplace_back(PyUnicode_AsUTF8(code->co_filename), place.line(), PyUnicode_AsUTF8(code->co_name));
    }
    context.report->breaks.push_back(std::move(entry));
  }
  // The same break again is a line, and that less and less often.
  const bool is_told = (count & (count - 1)) == 0;
  if (is_told && log_enabled("graph_breaks")) {
    log("graph_breaks", count == 1 ? break_text(exit)
                                   : worded(reason, "graph_break_again", "OOL", text_object(reason).get(),
                                            stack_list(stack).get(), count));
  }
  if (CompileTrace* trace = CompileTrace::current(); trace && trace->is_on()) trace->broken(exit, break_text(exit));
}

void fall_back(Context& context, Segment& segment, const CodePlace& place, const Failure& failure) {
  segment.given_up = true;
  ++stats().fallbacks[failure.cause];
  const int64_t count = history().note(Event::fallback, place, failure.cause, failure.message);
  if (CompileTrace* trace = CompileTrace::current()) trace->failed(failure.cause, failure.message);
  if (context.report) context.report->breaks.push_back({failure.cause + ": " + failure.message, {}});
  const bool raises = context.fullgraph || settings().strict;
  if (!raises && count > 1) return;
  const std::vector<CodePlace> stack = failure.stack.empty() ? std::vector{place} : failure.stack;
  const std::string text =
      worded("Magneto could not capture " + place_text(place) + " and leaves it to CPython: " + failure.message,
             "failure", "OsOsOOOO", place.info->code, failure.cause.c_str(), text_object(failure.message).get(),
             failure.stage.c_str(), stack_list(stack).get(), text_object(failure.graph).get(),
             failure.exception ? failure.exception.get() : Py_None, raises ? Py_True : Py_False);
  if (raises) {
    raise(context.fullgraph ? "Unsupported" : "FailedFallback", text);
  } else if (settings().suppress_errors) {
    log_error(text);
  } else {
    warn(text);
  }
}

void report_limit(Segment& segment, const CodePlace& place, const char* setting, int64_t limit,
                  const std::string& detail) {
  segment.given_up = true;
  ++stats().fallbacks[setting];
  if (CompileTrace* trace = CompileTrace::current()) trace->failed(setting, detail);
  if (history().note(Event::limit, place, setting, detail) > 1) return;
  warn(std::string("magneto hit config.") + setting + " (" + std::to_string(limit) + ")\n    function: '" +
       PyUnicode_AsUTF8(place.info->code->co_qualname) + "' (" + PyUnicode_AsUTF8(place.info->code->co_filename) + ":" +
       std::to_string(place.line()) + ")\n    " + detail +
       "\nIts captures are used as before; new cases run under CPython from here on. What keeps changing: "
       "print(magneto.recompiles()), or TORCH_LOGS=recompiles.");
}

std::string failure_text(const CodePlace& start, const guards::Failure& failure, int indent) {
  std::string text = readable(start, failure.text);
  if (failure.place.empty()) return text;
  return text + worded("", "needed_at", "Oi", text_object(failure.place).get(), indent);
}

std::string failed_guards(const Segment& segment, const CodePlace& start, const guards::Roots& roots) {
  std::string text;
  for (const Entry* entry : segment.snapshot()) {
    text += "    - " + entry->id + ": " + failure_text(start, guards::failure_of(*entry->guards, roots), 11) + "\n";
  }
  return text;
}

void report_sizes(const CodePlace& start, const std::vector<std::string>& lines) {
  const bool enabled = log_enabled("dynamic");
  for (const std::string& line : lines) {
    if (enabled) {
      log("dynamic", readable(start, line));
    } else if (line.find('\n') != line.npos) {
      announce(readable(start, line));
    }
  }
}

void report_recompile(const Context& context, const Segment& segment, const CodePlace& place,
                      const guards::Roots& roots) {
  ++stats().recompiles;
  const guards::Failure newest = guards::failure_of(*segment.entries.front()->guards, roots);
  const char* condition = context.dynamic == 0 ? " under dynamic=False" : "";  // another remedy helps then
  const std::string example = readable(place, newest.text);
  history().note(Event::recompile, place, without_values(example) + condition, example, newest.place);
  const std::string head = std::string("Recompiling function ") + PyUnicode_AsUTF8(place.info->code->co_qualname) +
                           " in " + PyUnicode_AsUTF8(place.info->code->co_filename) + ":" +
                           std::to_string(place.line());
  const std::string triggered = "\n    triggered by the following guard failure(s):\n";
  const std::string reasons = head + triggered + failed_guards(segment, place, roots);
  if (CompileTrace* trace = CompileTrace::current(); trace->is_on()) {
    std::vector<CompileTrace::FailedEntry> failed;
    for (const Entry* entry : segment.snapshot()) {
      failed.push_back({entry->id, {}, {}, condition});
      for (const guards::Failure& failure : guards::failures_of(*entry->guards, roots)) {
        failed.back().failures.push_back(readable(place, failure.text));
        failed.back().places.push_back(failure.place);
      }
    }
    trace->recompiled(reasons, failed);
  }
  if (log_enabled("recompiles")) log("recompiles", reasons);
  if (!log_enabled("recompiles_verbose")) return;
  std::string all = head;
  for (const Entry* entry : segment.snapshot()) {
    all += triggered + "    guard " + entry->id + " failures:\n";
    for (const guards::Failure& failure : guards::failures_of(*entry->guards, roots)) {
      all += "    - " + failure_text(place, failure, 6) + "\n";
    }
  }
  log("recompiles_verbose", all);
}

void report_raised(const std::vector<CodePlace>& stack, const std::string& error) {
  if (stack.empty() || !log_enabled("graph_breaks") || !first_time("raised " + place_text(stack.back()), error)) return;
  const BreakInfo& info = break_info(BreakReason::Exception);
  log("graph_breaks", worded(error, "graph_break", "sOssO", info.name, text_object(error).get(), info.explanation,
                             info.hint, stack_list(stack).get()));
}

void forget_what_was_said() { said().clear(); }

void report_skipped(const CodePlace& place, const char* why) {
  if (history().note(Event::skipped, place, why) > 1) return;
  if (log_enabled("dynamo")) log("dynamo", "skipping: " + place_text(place) + ": " + why);
}

void report_uncompiled(const std::string& place, const std::string& cause) {
  if (!first_time("uncompiled", cause)) return;
  SavedError saved;
  if (!warn("Magneto runs the operators of " + place + " one by one, as eager does: " + cause +
            ". magneto.stats()[\"uncompiled\"] counts such graphs; this is said once.")) {
    PyErr_WriteUnraisable(nullptr);
  }
}

void report_cut(const std::string& place, int64_t expressions, int64_t kernels) {
  constexpr int64_t few = 20;  // one kernel among so many more
  if (expressions == 0 || expressions * few <= kernels || !first_time("cut", "")) return;
  SavedError saved;
  if (!warn("Magneto cut kernels of " + place + " into smaller ones: with " + std::to_string(expressions) +
            " more expressions they would have been too large to compile. Results are the same. "
            "magneto.stats()[\"cut\"] counts such expressions, TORCH_LOGS=fusion shows them; this is said once.")) {
    PyErr_WriteUnraisable(nullptr);
  }
}

void report_no_joint(const CodePlace& start, const std::string& cause) {
  history().note(Event::no_joint, start, cause);
  const std::string place = place_text(start);
  if (log_enabled("aot_joint_graph")) {
    log("aot_joint_graph",
        "no joint graph of " + place + ": " + cause + "; its torch calls run one by one, under autograd");
  }
  if (!settings().joint_graph || !first_time("no joint", cause)) return;  // off: as was asked for
  SavedError saved;
  const std::string because = cause.ends_with('.') ? cause.substr(0, cause.size() - 1) : cause;
  if (!warn("Magneto trains " + place + " at eager's speed: its torch calls run one by one, under autograd, because " +
            "there is no joint graph: " + because +
            ". magneto.stats()[\"no_joint\"] counts such graphs; this is said once.")) {
    PyErr_WriteUnraisable(nullptr);
  }
}

void report_eager_backward(const std::string& cause) {
  if (!first_time("eager backward", cause)) return;
  SavedError saved;
  if (!warn("Magneto's compiled autograd leaves backwards, or the rest of them, to PyTorch's engine: " + cause +
            ". magneto.stats()[\"eager_backwards\"] counts them; this is said once.")) {
    PyErr_WriteUnraisable(nullptr);
  }
}

void report_backward_sizes(const std::vector<std::string>& lines) {
  if (lines.empty() || !log_enabled("dynamic")) return;
  for (const std::string& line : lines) log("dynamic", "compiled autograd: " + line);
}

void report_partition(const std::string& place, autograd::Departure departure) {
  constexpr const char* causes[] = {
      "the search for what to save was given up: the graph is too large", "the memory budget can't be kept to",
      "the policy of a selective checkpoint can't be asked (it looks at arguments, or its contexts are others than "
      "create_selective_checkpoint_contexts makes)"};
  const char* cause = causes[static_cast<size_t>(departure)];
  ++stats().partitions[cause];
  if (!first_time("partition", cause)) return;
  SavedError saved;
  if (!warn("Magneto saves other tensors for the backward of " + place + " than asked: " + cause +
            ". Gradients are the same. magneto.stats()[\"partitions\"] counts such backwards; this is said once.")) {
    PyErr_WriteUnraisable(nullptr);
  }
}

void report_undone(const CodePlace& place, PyObject* raised, Fault fault) {
  constexpr const char* kinds[] = {"", " (an assumption)", " (of compiled code only)"};
  const std::string name = Py_TYPE(raised)->tp_name + std::string(kinds[static_cast<size_t>(fault)]);
  ++stats().undone[name];
  history().note(Event::undone, place, name);
  if (log_enabled("graph_breaks")) {
    log("graph_breaks", "An operator in the graph of " + place_text(place) + " raised " + name +
                            "; the run is undone, and CPython runs the segment" +
                            (fault == Fault::Assumption ? "" : ", to raise at the right line"));
  }
}

bool allow_undone(const Context& context, const CodePlace& place, PyObject* raised, Fault fault,
                  const std::pair<Ref, int>& called_at) {
  const bool raises = fault == Fault::Ours && (context.fullgraph || settings().strict);
  const Ref words = Ref::steal(PyObject_Str(raised));
  if (!words) PyErr_Clear();
  const std::string message(words ? text_argument(words.get()) : "");
  if (!raises && !first_time("undone " + place_text(place), Py_TYPE(raised)->tp_name)) return true;
  const char* counted = " magneto.stats()[\"undone\"] counts such calls, which run twice; this is said once.";
  if (fault == Fault::Assumption && message.find(runtime::kPromised) != message.npos) {
    const std::string promise = message.substr(sizeof(runtime::kNotSo) - 1);
    return warn(worded(promise, "broken_promise", "OOOi", text_object(promise).get(),
                       text_object(place_text(place)).get(), called_at.first ? called_at.first.get() : Py_None,
                       called_at.second) +
                counted);
  }
  if (fault == Fault::Assumption) {
    return warn("The compiled code of " + place_text(place) + " assumed more than this call's data keep (" +
                message.substr(std::min(message.size(), sizeof(runtime::kNotSo) - 1)) + "): CPython runs it instead." +
                counted);
  }
  const std::string text =
      "The compiled code of " + place_text(place) + " raised " + Py_TYPE(raised)->tp_name + " (" + message +
      "), and CPython, which ran the same again, did not: results and state are CPython's." + counted +
      " If what is computed is the same each time, this is an error of Magneto's: please report it. "
      "backend='aot_eager' tells whether generated code has to do with it; @magneto.disable keeps the function out.";
  if (!raises) return warn(text);
  raise(context.fullgraph ? "Unsupported" : "FailedFallback", text);
  return false;
}

PyObject* check_raised(Context& context, Segment& segment, const CodeInfo& info, int32_t instr, PyObject* result) {
  const std::string raised = std::exchange(segment.raised, {});
  if (raised.empty() || !result) return result;
  const char* ours = "the capture saw the program raise ";
  const char* programs = "when it hears that it is being compiled (torch.compiler.is_compiling()), the program raises ";
  const std::string message = (segment.raised_as_compiled ? programs : ours) + raised +
                              (segment.raised_as_compiled ? ", and in eager it does not" : ", and CPython did not");
  fall_back(context, segment, {&info, instr},
            {.cause = segment.raised_as_compiled ? "Exception" : "internal error", .message = message});
  record_remembered(context, info.code, message);
  if (PyErr_Occurred()) Py_CLEAR(result);
  return result;
}

}  // namespace magneto::dispatch
