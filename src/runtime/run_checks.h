// Compiled runs that are checked while the program runs: config.verify, config.nan_watch.
#pragma once

#include <atomic>
#include <cstdint>

#include "support/settings.h"

namespace magneto::runtime {

/// What is asked for now, and what was found. Read without the GIL.
struct RunChecks {
  std::atomic<uint64_t> verify_share{0};  // of 2^32 runs; 0: none
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

}  // namespace magneto::runtime
