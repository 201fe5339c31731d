// A line at the bottom of a terminal, or under a notebook's cell, while a compile takes long: what is compiled, which
// stage, for how long. Nothing is written where standard error is neither.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace magneto::runtime {

/// A compile, as long as it lives: one inside another is part of it. Takes it longer than config.progress_seconds, it
/// shows a line. Needs the GIL, as `tick` does.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;

  /// This thread's compile is in that stage (null: in the one that it was in), of which `done` of `total` parts are
  /// done.
  static void tick(const char* stage, size_t done = 0, size_t total = 0);

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now, size_t done, size_t total);

  std::string what_;
  const char* stage_ = "";
  Clock::time_point begin_, drawn_;
  bool is_drawn_ = false, in_notebook_ = false, is_nowhere_ = false;
};

}  // namespace magneto::runtime
