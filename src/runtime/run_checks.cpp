#include "runtime/run_checks.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace magneto::runtime {

RunChecks& run_checks() {
  static RunChecks checks;
  return checks;
}

void configure_run_checks(const Settings& now) {
  const double rate = now.verify == "all" ? 1 : now.verify == "sample" ? std::clamp(now.verify_rate, 0.0, 1.0) : 0;
  RunChecks& checks = run_checks();
  checks.verify_rate = rate;
  checks.verify_budget = now.verify == "all" ? std::numeric_limits<double>::infinity() : now.verify_budget;
  checks.verify_share = static_cast<uint64_t>(std::llround(std::ldexp(rate, 32)));
  checks.nan_watch = now.nan_watch;
  checks.active = checks.verify_share != 0 || now.nan_watch;
}

bool is_verification_due() {
  // SplitMix64, a sequence for each thread: PyTorch's generators are the program's.
  static std::atomic<uint64_t> threads{0};
  thread_local uint64_t state = threads.fetch_add(1) << 40;
  uint64_t mixed = state += 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return ((mixed ^ (mixed >> 31)) >> 32) < run_checks().verify_share.load(std::memory_order_relaxed);
}

bool VerifyBudget::allows() {
  const double budget = run_checks().verify_budget.load(std::memory_order_relaxed);
  const double rate = run_checks().verify_rate.load(std::memory_order_relaxed);
  if (!std::isfinite(budget)) return true;
  const std::lock_guard lock(mutex_);
  if (rate > 0) credit_ += run_ * (budget / rate);
  return credit_ >= Duration(0);
}

void VerifyBudget::spent(Duration run, Duration comparing) {
  constexpr double kNews = 0.25;  // the first runs are slow
  const std::lock_guard lock(mutex_);
  run_ = run_ == Duration(0) ? run : std::min(run, run_ + (run - run_) * kNews);
  credit_ = std::min(credit_, Duration(0)) - comparing;  // nothing is saved up: no bursts
}

}  // namespace magneto::runtime
