// A compiled program that TORCH_TRACE watches: how long its steps take, and its texts.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace magneto::runtime {

/// Of its first calls.
class StepTimes {
 public:
  explicit StepTimes(size_t steps) : rows_(steps) {}

  struct Row {
    int64_t runs = 0;
    double least = 0, sum = 0;  // nanoseconds
  };

  /// A call begins: true, if it is to be timed.
  bool begin() {
    return calls_.load(std::memory_order_relaxed) < kCalls && calls_.fetch_add(1, std::memory_order_relaxed) < kCalls;
  }
  /// What its steps took.
  void add(const std::vector<double>& nanoseconds) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < rows_.size(); ++i) {
      Row& row = rows_[i];
      row.least = row.runs ? std::min(row.least, nanoseconds[i]) : nanoseconds[i];
      row.sum += nanoseconds[i];
      ++row.runs;
    }
  }
  std::vector<Row> rows() const {
    const std::lock_guard lock(mutex_);
    return rows_;
  }

 private:
  static constexpr int64_t kCalls = 100;
  std::atomic<int64_t> calls_{0};
  mutable std::mutex mutex_;
  std::vector<Row> rows_;
};

struct ProgramWatch {
  ProgramWatch(size_t steps, std::string plan, std::string data)
      : times(steps), plan(std::move(plan)), data(std::move(data)) {}

  StepTimes times;
  std::string plan, data;  // Stage::plan, Stage::data
};

}  // namespace magneto::runtime
