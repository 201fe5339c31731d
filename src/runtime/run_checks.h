// Compiled runs that are checked while the program runs: config.verify, config.nan_watch.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "support/settings.h"

namespace magneto::runtime {

/// What is asked for now, and what was found. Read without the GIL.
struct RunChecks {
  std::atomic<uint64_t> verify_share{0};  // of 2^32 runs; 0: none
  std::atomic<double> verify_rate{0}, verify_budget{0};
  std::atomic<bool> nan_watch{false};
  std::atomic<bool> active{false};  // one of them

  std::atomic<int64_t> verified{0};     // runs that were compared with eager's
  std::atomic<int64_t> differences{0};  // of these, those that were not eager's
  std::atomic<int64_t> left_out{0};     // runs due, of graphs that can't run twice
  std::atomic<int64_t> nonfinite{0};    // runs with NaN or infinity in a result
};
RunChecks& run_checks();

/// A setting was changed.
void configure_run_checks(const Settings& now);

/// Whether a run is one of those to verify. By chance: programs repeat themselves, and each of their graphs is to come.
bool is_verification_due();

/// Of one graph: keeps what comparing takes within its share of the time of all runs (config.verify_budget). Runs that
/// are not compared are not timed: those that are say how long a run takes, and chance how many there were between two.
class VerifyBudget {
 public:
  using Duration = std::chrono::duration<double>;

  /// A run is due. False: earlier ones took more than has been earned since.
  bool allows();
  void spent(Duration run, Duration comparing);

 private:
  std::mutex mutex_;
  Duration run_{0}, credit_{0};
};

}  // namespace magneto::runtime
