#include "observe/times.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <utility>

#include "observe/progress.h"
#include "support/settings.h"

namespace magneto::runtime {
namespace {

thread_local RecordedRuns* recorded = nullptr;
thread_local StageTime* measuring = nullptr;  // the innermost stage that measures memory

int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) << 10;
}

/// The peak is what is resident now. Where the system does not allow that, peaks are those since the process's start.
void reset_peak_memory() {
  const int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = write(file, "5", 1);
  close(file);
}

}  // namespace

std::vector<StageRow>& stage_rows() {
  static auto* rows = new std::vector<StageRow>;
  return *rows;
}

RecordedRuns::RecordedRuns() : outer_(std::exchange(recorded, this)) {}

RecordedRuns::~RecordedRuns() {
  recorded = outer_;
  if (outer_) outer_->runs_.insert(outer_->runs_.end(), runs_.begin(), runs_.end());
}

std::string RecordedRuns::print() const {
  std::vector<StageRun> sorted = runs_;
  std::ranges::sort(sorted, {}, &StageRun::begin);
  std::string text;
  for (const StageRun& run : sorted) {
    char line[160];
    snprintf(line, sizeof line, "%10.3f ms  %s\n", run.seconds * 1e3, run.stage);
    text += line;
  }
  return text;
}

const char*& failed_stage() {
  thread_local const char* stage = "";
  return stage;
}

StageTime::StageTime(const char* stage) : stage_(stage), exceptions_(std::uncaught_exceptions()) {
  Progress::tick(stage);
  if (range_.isActive()) range_.before(std::string("magneto::") + stage);
  // The outer stage comes first in the table.
  if (std::ranges::none_of(stage_rows(), [&](const auto& row) { return row.stage == stage; })) {
    stage_rows().push_back({stage, {}, {}});
  }
  if (!settings().fail_stage.empty() && settings().fail_stage == stage) {
    failed_stage() = stage;
    throw std::runtime_error(std::string("a test asks for an error in ") + stage);
  }
  if (!settings().stage_memory) return;
  outer_ = measuring;
  if (outer_) outer_->measure_peak();
  reset_peak_memory();
  measuring = this;
}

StageTime::~StageTime() {
  if (std::uncaught_exceptions() > exceptions_ && !*failed_stage()) failed_stage() = stage_;
  end();
}

void StageTime::measure_peak() { peak_ = std::max(peak_, peak_memory()); }

double StageTime::end() {
  if (seconds_ >= 0) return seconds_;
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  range_.end();
  if (measuring == this) {
    measure_peak();
    measuring = outer_;
    if (outer_) outer_->peak_ = std::max(outer_->peak_, peak_);
  }
  if (recorded) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    recorded->runs_.push_back({stage_, std::chrono::duration<double>(now).count() - seconds_, seconds_, peak_});
  }
  for (StageRow& row : stage_rows()) {
    if (row.stage != stage_) continue;
    row.seconds.push_back(seconds_);
    if (peak_) row.peaks.push_back(peak_);
  }
  return seconds_;
}

}  // namespace magneto::runtime
