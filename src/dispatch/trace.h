// TORCH_TRACE: one compile in PyTorch's structured log (magneto/_trace.py), for tlparse.
#pragma once

#include <Python.h>

#include <optional>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "dispatch/log.h"
#include "observe/program_watch.h"
#include "observe/stages.h"
#include "observe/times.h"

namespace magneto::dispatch {

/// For one compile; if nobody reads, it does nothing.
class CompileTrace {
 public:
  /// Tells that the compile begins; `place`: where the user sees that.
  CompileTrace(const CompileLog& log, const capture::Start& start, const CodePlace& place);
  /// Tells what came of it.
  ~CompileTrace();
  CompileTrace(const CompileTrace&) = delete;

  /// The innermost one of this thread, or null.
  static CompileTrace* current();
  bool is_on() const { return on_; }

  /// A capture is done.
  void captured(const capture::Trace& trace);
  /// The captured graph, when the compile needs it no longer; it is written later.
  void keep(graph::Graph graph);
  /// Its program; `traced_runs` will tell how long its steps take.
  void watch(std::shared_ptr<runtime::ProgramWatch> program);
  /// There is an entry, whose guards held for `roots`; both outlive this.
  void finished(guards::GuardProgram& guards, const guards::Roots& roots);
  void stage(const char* name, const std::string& text);
  /// It ends in a graph break.
  void broken(const runtime::Exit& exit, const std::string& text);
  /// An entry that is there already, and why it does not serve; under which condition that was a guard.
  struct FailedEntry {
    std::string id;
    std::vector<std::string> failures, places;  // the user's lines that needed them
    const char* condition;
  };
  void recompiled(const std::string& reasons, const std::vector<FailedEntry>& entries);
  void failed(const std::string& cause, const std::string& message);
  /// The graph has gradients: what its forward saves. The programs that follow are the forward's, then the backwards'.
  void trains(const graph::Graph& graph, const autograd::Joint& joint);

 private:
  /// JSON for `python -m magneto report`.
  void data(const char* name, const std::string& json);
  Ref outcome() const;
  Ref stage_runs() const;

  const CompileLog& log_;
  PyCodeObject* code_;
  bool on_;
  CompileTrace* outer_;
  std::optional<runtime::RecordedRuns> runs_;
  guards::GuardProgram* finished_ = nullptr;
  guards::Roots roots_{};
  std::string self_, break_reason_, fail_type_, fail_reason_;
  size_t guards_ = 0, operators_ = 0, nodes_ = 0, inputs_ = 0;
};

// What has not been written yet, lists of tuples that begin with the compile's (frame, compile, attempt):
/// guards: (id, JSON);
Ref take_traced_guards();
/// captured graphs: (id, GraphModule, JSON);
Ref take_traced_graphs();
/// what the steps of all traced programs have taken so far: (id, JSON).
Ref traced_runs();
/// In a fork's child: its parent writes what was traced before.
void forget_traced();

}  // namespace magneto::dispatch
