#include "runtime/times.h"

#include <algorithm>

namespace magneto::runtime {

StageTimes& stage_times() {
  static auto* times = new StageTimes;
  return *times;
}

std::vector<StageRun>*& recorded_runs() {
  static std::vector<StageRun>* runs = nullptr;
  return runs;
}

StageTime::StageTime(const char* stage) : stage_(stage) {
  if (range_.isActive()) range_.before(std::string("magneto::") + stage);
  // The outer stage comes first in the table.
  if (std::ranges::none_of(stage_times(), [&](const auto& row) { return row.first == stage; })) {
    stage_times().emplace_back(stage, std::vector<double>());
  }
}

double StageTime::end() {
  if (seconds_ >= 0) return seconds_;
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  range_.end();
  if (recorded_runs()) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    recorded_runs()->push_back({stage_, std::chrono::duration<double>(now).count() - seconds_, seconds_});
  }
  for (auto& [stage, seconds] : stage_times()) {
    if (stage == stage_) seconds.push_back(seconds_);
  }
  return seconds_;
}

}  // namespace magneto::runtime
