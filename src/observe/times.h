// How long the stages of compiles take, and how much memory: for torch._dynamo.utils.compile_times(), as ranges of
// profiles, for messages of where a compile failed.
#pragma once

#include <ATen/record_function.h>

#include <chrono>
#include <string>
#include <vector>

namespace magneto::runtime {

struct StageRow {
  std::string stage;
  std::vector<double> seconds;  // of each run
  std::vector<int64_t> peaks;   // the process's peak of memory in each run, in bytes, if it was measured
};
/// In order of first use. Needs the GIL.
std::vector<StageRow>& stage_rows();

struct StageRun {
  const char* stage;
  double begin;  // seconds since 1970
  double seconds;
  int64_t peak;  // bytes; 0: not measured
};
/// The runs of stages that end on this thread while it lives, one by one. Nests.
class RecordedRuns {
 public:
  RecordedRuns();
  ~RecordedRuns();
  RecordedRuns(const RecordedRuns&) = delete;
  const std::vector<StageRun>& all() const { return runs_; }
  /// A line for each, in order of their beginnings.
  std::string print() const;

 private:
  friend class StageTime;
  std::vector<StageRun> runs_;
  RecordedRuns* outer_;
};

/// The innermost stage that an exception left, since this was set to "".
const char*& failed_stage();

/// A stage, as long as it lives. One inside another has the outer one's name and a dot in front of its own:
/// "backend.lowering".
class StageTime {
 public:
  explicit StageTime(const char* stage);
  ~StageTime();
  StageTime(const StageTime&) = delete;
  /// Ends it early; gives its seconds.
  double end();

 private:
  void measure_peak();

  const char* stage_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double seconds_ = -1;
  int exceptions_;
  int64_t peak_ = 0;
  StageTime* outer_ = nullptr;  // that measures memory
  at::RecordFunction range_{at::RecordScope::USER_SCOPE};
};

}  // namespace magneto::runtime
