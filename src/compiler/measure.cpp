#include "compiler/measure.h"

#include <algorithm>

#include "runtime/device/device.h"

namespace magneto::runtime {
namespace {

constexpr double kBatchSeconds = 1e-3;
constexpr int kMostCalls = 50, kRounds = 9;
/// One comparison takes no longer than about this, however slow the candidates are.
constexpr double kMostSeconds = 0.5;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

double timed(const Device& device, const std::function<void()>& call, int calls) {
  const auto batch = [&] {
    for (int i = 0; i < calls; ++i) call();
  };
  return device.measure(batch) / calls;
}

}  // namespace

std::vector<double> measure(const Device& device, const std::vector<std::function<void()>>& candidates,
                            Clock::time_point deadline, const std::function<void()>& reset) {
  const auto start = Clock::now();
  const size_t count = candidates.size();
  std::vector<double> least(count);
  std::vector<int> calls(count);
  for (size_t i = 0; i < count; ++i) {
    if (reset) reset();
    const double first = timed(device, candidates[i], 1);  // caches are cold: for the number of calls only
    least[i] = first;
    calls[i] = std::clamp(static_cast<int>(kBatchSeconds / std::max(first, 1e-7)), 1, kMostCalls);
  }
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < count; ++i) {
      if (reset) reset();
      least[i] = std::min(least[i], timed(device, candidates[i], calls[i]));
    }
    if (Clock::now() > deadline || seconds(Clock::now() - start) > kMostSeconds) break;
  }
  return least;
}

}  // namespace magneto::runtime
