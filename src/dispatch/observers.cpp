#include "dispatch/observers.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>

#include "cache/cache.h"
#include "compiler/pipeline.h"
#include "dispatch/log.h"
#include "dispatch/report.h"
#include "dispatch/trace.h"
#include "observe/stats.h"

namespace magneto::dispatch {
namespace {

using graph::Stage;

/// `run_2026_11_21_15_30_00_123456-pid_789`, as torch.compile names it: one for a process.
const std::string& run_name() {
  static const std::string name = [] {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    const auto seconds = static_cast<time_t>(micros / 1'000'000);
    tm parts{};
    localtime_r(&seconds, &parts);
    char text[80];
    const size_t length = strftime(text, sizeof text, "run_%Y_%m_%d_%H_%M_%S_", &parts);
    snprintf(text + length, sizeof text - length, "%06d-pid_%d", static_cast<int>(micros % 1'000'000), getpid());
    return std::string(text);
  }();
  return name;
}

/// What may stand in a file's name.
std::string file_name(std::string text) {
  for (char& c : text) {
    if (!isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '-') c = '_';
  }
  return text.substr(0, 80);
}

/// Whether the debug directory gets the stage: it is none of the list.
bool is_written(Stage stage) {
  const std::string list = "," + settings().debug_dump_without + ",";
  return list.find("," + std::string(graph::facts(stage).name) + ",") == std::string::npos;
}

bool is_backward(const observe::GraphCompile& event) { return event.direction == std::string_view("BACKWARDS"); }

/// What is to be said of the cache on disk. It costs time at most.
void report_cache() {
  const std::string notice = cache::take_notice();
  if (notice.empty()) return;
  SavedError saved;
  if (!warn(notice)) PyErr_WriteUnraisable(nullptr);
}

/// magneto.stats().
class Statistics final : public observe::Observer {
  void program_made(const observe::ProgramMade& event) override {
    const compiler::Compiled& made = event.program;
    Stats& counts = stats();
    counts.kernels += made.kernels;
    counts.instructions += made.instructions;
    counts.cut += made.cut;
    counts.specialised += event.specialised;
    if (!made.uncompiled.empty()) ++counts.uncompiled[made.uncompiled];
    if (event.specialised) return;
    counts.tuned += made.tuned;
    counts.cached_programs += made.cached;
    for (const std::string& name : made.externs) ++counts.externs[name];
  }
  void joint_graph(const observe::JointGraph& event) override {
    ++stats().joint_graphs;
    for (const autograd::Backward& backward : event.joint.backwards) {
      stats().saved_bytes += backward.saved_bytes;
      stats().eager_saved_bytes += backward.eager_saved_bytes;
      stats().recomputed += backward.recomputed;
      if (!backward.ends.empty()) stats().bucket_parts += static_cast<int64_t>(backward.ends.size()) + 1;
    }
  }
  void no_joint_graph(const observe::NoJointGraph& event) override {
    ++stats().autograd_graphs;
    ++stats().no_joint[event.cause];
  }
};

/// What runs slower than asked is said, once.
class Warnings final : public observe::Observer {
  void program_made(const observe::ProgramMade& event) override {
    if (!event.specialised) report_cache();
    report_cut(event.place, event.program.cut, event.program.kernels);
    if (!event.program.uncompiled.empty()) report_uncompiled(event.place, event.program.uncompiled);
  }
  void joint_graph(const observe::JointGraph& event) override {
    for (const autograd::Backward& backward : event.joint.backwards) {
      for (const autograd::Departure departure : backward.departures) report_partition(event.place, departure);
    }
  }
  void no_joint_graph(const observe::NoJointGraph& event) override { report_no_joint(event.start, event.cause); }
};

}  // namespace

void subscribe_to_all() {
  observe::Events::subscribe_always(*new Statistics);
  observe::Events::subscribe_always(*new Warnings);
}

ReportObserver::ReportObserver(Report* report) : report_(report) {
  if (!report_ || !report_->wants_stages) return;
  graph_ = part_ = report_->stages.size();
  report_->stages.emplace_back();
}

void ReportObserver::graph_compile(const observe::GraphCompile& event) {
  if (!report_ || !report_->wants_stages) return;
  part_ = graph_;
  if (event.is_done || !is_backward(event)) return;
  part_ = report_->stages.size();
  report_->stages.emplace_back().emplace_back("part", "backward");
}

void ReportObserver::program_made(const observe::ProgramMade& event) {
  if (report_ && event.program.planned_peak >= 0) report_->planned_peaks.push_back(event.program.planned_peak);
}

void ReportObserver::take(Stage stage, const std::string& text) {
  report_->stages[part_].emplace_back(graph::facts(stage).name, text);
}

bool DumpObserver::wanted(Stage stage) const { return on_ && is_written(stage); }

void DumpObserver::graph_compile(const observe::GraphCompile& event) {
  const bool begins = !event.is_done && is_backward(event);
  part_ = begins ? folders_.size() : 0;
  if (begins) folders_.emplace_back();
}

const std::string& DumpObserver::folder() {
  namespace fs = std::filesystem;
  std::string& folder = folders_[part_];
  if (!folder.empty()) return folder;
  static int graphs = 0;
  if (number_ < 0) number_ = graphs++;
  std::error_code error;
  fs::path base = settings().debug_dir.empty() ? fs::current_path(error) : fs::path(settings().debug_dir);
  base = base / "torch_compile_debug" / run_name() / "magneto";
  std::string name = std::to_string(number_) + "_" + file_name(function_);
  if (part_ > 0) name += "_backward";
  if (part_ > 1) name += "_" + std::to_string(part_);
  folder = base / name;
  fs::create_directories(folder, error);
  if (error) {
    give_up(error.message());
  } else {
    announce(name + " debug trace: " + folder);
  }
  return folder;
}

void DumpObserver::take(Stage stage, const std::string& text) {
  const std::filesystem::path to = folder();
  if (!on_) return;
  errno = 0;
  std::ofstream file(to / graph::facts(stage).file);
  file << text;
  file.close();
  if (!file) give_up(std::generic_category().message(errno ? errno : EIO));
}

/// Said once for each place where graphs have their folders.
void DumpObserver::give_up(const std::string& reason) {
  on_ = false;
  static std::set<std::string>& told = *new std::set<std::string>;
  if (!told.insert(std::filesystem::path(folders_[part_]).parent_path()).second) return;
  announce("can't write stages to " + folders_[part_] + ": " + reason +
           ". Set magneto.config.debug_dir to a folder with room; the program goes on.");
}

bool LogObserver::wanted(Stage stage) const {
  const char* artifact = graph::facts(stage).artifact;
  return *artifact && log_enabled(artifact);
}

void LogObserver::take(Stage stage, const std::string& text) {
  const graph::StageFacts& facts = graph::facts(stage);
  if (!text.empty()) log(facts.artifact, std::string(facts.title) + " (" + function_ + ")\n" + text);
}

void LogObserver::graph_compile(const observe::GraphCompile& event) {
  if (!log_enabled("inductor")) return;
  log("inductor", std::string("Step 3: torchinductor ") + (event.is_done ? "done compiling " : "compiling ") +
                      event.direction + " graph " + std::to_string(stats().graphs - 1));
}

void LogObserver::no_code_for_all_sizes(const observe::NoCodeForAllSizes& event) {
  if (log_enabled("dynamic")) log("dynamic", "no code for all sizes of " + event.place + ": " + event.cause);
}

void LogObserver::joint_graph(const observe::JointGraph& event) {
  if (!log_enabled("aot_joint_graph")) return;
  std::string text = "forward of " + event.place + ":\n" + graph::print(event.forward);
  for (const autograd::Backward& backward : event.joint.backwards) {
    text += "backward:\n" + graph::print(backward.graph);
    for (size_t part = 0; !backward.ends.empty() && part <= backward.ends.size(); ++part) {
      const auto is_of_part = [&](const autograd::Backward::Leaf& leaf) { return leaf.part == part; };
      const size_t end = part < backward.ends.size() ? backward.ends[part] : backward.graph.aten_nodes.size();
      text += "part " + std::to_string(part + 1) + " of " + std::to_string(backward.ends.size() + 1) +
              ": up to operator " + std::to_string(end) + ", " +
              std::to_string(std::ranges::count_if(backward.leaves, is_of_part)) +
              " gradients, which DistributedDataParallel exchanges while the next one runs\n";
    }
  }
  log("aot_joint_graph", text);
}

bool TraceObserver::watches() const {
  const CompileTrace* trace = CompileTrace::current();
  return trace && trace->is_on();
}

bool TraceObserver::wanted(Stage stage) const {
  return watches() && (stage == Stage::functional || stage == Stage::normal_form || stage == Stage::loops);
}

void TraceObserver::take(Stage stage, const std::string& text) {
  CompileTrace::current()->stage(graph::facts(stage).name, text);
}

void TraceObserver::program_made(const observe::ProgramMade& event) {
  if (!watches()) return;
  CompileTrace& trace = *CompileTrace::current();
  if (event.program.watch) trace.watch(std::move(event.program.watch));
  if (event.program.cached) {
    trace.stage("fx_graph_cache_hit", "the program was found in the cache on disk: passes and lowering did not run\n");
  }
}

void TraceObserver::joint_graph(const observe::JointGraph& event) {
  if (watches()) CompileTrace::current()->trains(event.forward, event.joint);
}

GraphObservers::GraphObservers(const Context& context, const std::string& function)
    : report_(context.report), dump_(context.settings[&Settings::debug_dump], function), log_(function) {
  for (observe::Observer* observer : std::initializer_list<observe::Observer*>{&report_, &dump_, &trace_, &log_}) {
    events.subscribe(*observer);
  }
}

}  // namespace magneto::dispatch
