// Messages of a compile: to the loggers that TORCH_LOGS and torch._logging.set_logs configure (magneto/_log.py). What
// is listened to is asked once for each compile, so that a compile that nobody watches makes no text.
#pragma once

#include <Python.h>

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "capture/capture.h"
#include "python/ref.h"
#include "runtime/plan/plan.h"

namespace magneto::dispatch {

/// `[frame/compile]`, `[frame/compile_attempt]` in front of log lines: the place where captures start, in order of
/// first capture; which capture of that place; how often this one was begun anew.
struct CompileId {
  int32_t frame = 0, compile = 0, attempt = 0;

  /// "0/1": an attempt is no part of it.
  std::string text() const { return std::to_string(frame) + "/" + std::to_string(compile); }
  /// (frame, compile, attempt).
  Ref tuple() const { return checked(Py_BuildValue("(iii)", frame, compile, attempt)); }
};

/// The compile that this thread is busy with, while it lives: its id stands in front of each line.
class CompileLog {
 public:
  explicit CompileLog(CompileId id);
  ~CompileLog();
  CompileLog(const CompileLog&) = delete;

  /// The innermost one of this thread, or null.
  static CompileLog* current();

  const CompileId& id() const { return id_; }
  void begin_attempt(int32_t attempt) { id_.attempt = attempt; }
  bool wants(std::string_view artifact) const { return wanted_.contains(artifact); }
  bool wants_any(std::initializer_list<std::string_view> artifacts) const;

 private:
  CompileId id_;
  std::set<std::string, std::less<>> wanted_;
  CompileLog* outer_;
};

/// Calls a function of a module of ours that writes what a compile does. That never fails a compile: null, where it
/// does.
template <typename... Arguments>
Ref call_sink(PyObject* module, const char* function, const char* format, Arguments... arguments) {
  SavedError saved;
  Ref result = Ref::steal(PyObject_CallMethod(module, function, format, arguments...));
  if (!result) PyErr_WriteUnraisable(nullptr);
  return result;
}

bool log_enabled(const char* artifact);
void log(const char* artifact, const std::string& text);
/// For people who asked for something that takes place elsewhere: a line of the log that is always shown.
void announce(const std::string& text);
/// A Python warning (RuntimeWarning); where the user's filter makes it an error, a line of the log: what the program
/// gives does not depend on what is said of it. False: something else was raised meanwhile (Ctrl-C).
bool warn(const std::string& text);
/// The same for what went wrong and was suppressed.
void log_error(const std::string& text);

/// What is made of objects in Python: `graph`, `graph_code`, `graph_sizes` of a torch.fx.GraphModule...
void log_graph(const std::string& name, PyObject* module);
/// ...and `bytecode`: the original beside the plan.
void log_bytecode(PyCodeObject* code, const std::string& plan);

/// trace_source and trace_bytecode.
class InstructionLog final : public capture::Tracer {
 public:
  InstructionLog(bool sources, bool instructions) : sources_(sources), instructions_(instructions) {}
  void instruction(const capture::InterpFrame& frame) override;

 private:
  void source(const capture::InterpFrame& frame);

  bool sources_, instructions_;
  std::vector<std::pair<const capture::InterpFrame*, int32_t>> lines_;  // of each frame the last line, outermost first
};

}  // namespace magneto::dispatch
