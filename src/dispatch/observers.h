// Who listens to the compile of a graph (observe/events.h): statistics and warnings to all of them; TORCH_LOGS,
// TORCH_TRACE, the debug directory (TORCH_COMPILE_DEBUG), `magneto.debug_dump` while they are asked for.
#pragma once

#include <string>
#include <vector>

#include "dispatch/context.h"
#include "observe/events.h"

namespace magneto::dispatch {

/// Counters and warnings: from now on, of all compiles.
void subscribe_to_all();

/// The text of each stage, for `magneto.debug_dump`: of the graph, and of each of its backwards.
class ReportObserver final : public observe::Observer {
 public:
  /// Null: nobody asks.
  explicit ReportObserver(Report* report);
  bool wanted(graph::Stage) const override { return report_ && report_->wants_stages; }
  void take(graph::Stage stage, const std::string& text) override;
  void program_made(const observe::ProgramMade& event) override;
  void graph_compile(const observe::GraphCompile& event) override;

 private:
  Report* report_;
  size_t graph_ = 0, part_ = 0;  // places in the report: of the graph, of what is compiled now
};

/// Files in the debug directory: a folder for the graph, and one for each of its backwards.
class DumpObserver final : public observe::Observer {
 public:
  /// `function`: names the graph's folder.
  DumpObserver(bool on, std::string function) : on_(on), function_(std::move(function)) {}
  bool wanted(graph::Stage stage) const override;
  void take(graph::Stage stage, const std::string& text) override;
  void graph_compile(const observe::GraphCompile& event) override;

 private:
  /// Makes it, the first time.
  const std::string& folder();
  void give_up(const std::string& reason);

  bool on_;
  std::string function_;
  int number_ = -1;                          // of the graph
  size_t part_ = 0;                          // what is compiled now: 0 the forward, then backwards
  std::vector<std::string> folders_ = {""};  // of the parts; empty: none yet
};

/// TORCH_LOGS.
class LogObserver final : public observe::Observer {
 public:
  explicit LogObserver(std::string function) : function_(std::move(function)) {}
  bool wanted(graph::Stage stage) const override;
  void take(graph::Stage stage, const std::string& text) override;
  void graph_compile(const observe::GraphCompile& event) override;
  void no_code_for_all_sizes(const observe::NoCodeForAllSizes& event) override;
  void joint_graph(const observe::JointGraph& event) override;

 private:
  std::string function_;
};

/// TORCH_TRACE: what tlparse shows and can't be made later.
class TraceObserver final : public observe::Observer {
 public:
  bool wanted(graph::Stage stage) const override;
  bool insists_on(graph::Stage) const override { return false; }
  bool watches() const override;
  void take(graph::Stage stage, const std::string& text) override;
  void program_made(const observe::ProgramMade& event) override;
  void joint_graph(const observe::JointGraph& event) override;
};

/// All of these, for one graph.
class GraphObservers {
 public:
  GraphObservers(const Context& context, const std::string& function);
  GraphObservers(const GraphObservers&) = delete;
  observe::Events events;

 private:
  ReportObserver report_;
  DumpObserver dump_;
  TraceObserver trace_;
  LogObserver log_;
};

}  // namespace magneto::dispatch
