// How long the stages of compiles take: for torch._dynamo.utils.compile_times(), and as ranges of profiles.
#pragma once

#include <ATen/record_function.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace magneto::runtime {

/// Seconds of each run of a stage, by stage, in order of first use. Needs the GIL.
using StageTimes = std::vector<std::pair<std::string, std::vector<double>>>;
StageTimes& stage_times();

struct StageRun {
  const char* stage;
  double begin;  // seconds since 1970
  double seconds;
};
/// Where the runs of stages are noted one by one, in order of their ends; null: nowhere.
std::vector<StageRun>*& recorded_runs();

/// A stage, as long as it lives. One inside another has the outer one's name and a dot in front of its own:
/// "backend.lowering".
class StageTime {
 public:
  explicit StageTime(const char* stage);
  ~StageTime() { end(); }
  StageTime(const StageTime&) = delete;
  /// Ends it early; gives its seconds.
  double end();

 private:
  const char* stage_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double seconds_ = -1;
  at::RecordFunction range_{at::RecordScope::USER_SCOPE};
};

}  // namespace magneto::runtime
