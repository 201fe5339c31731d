// Timing alternatives against each other.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

namespace magneto::runtime {

class Device;

using Clock = std::chrono::steady_clock;

/// Seconds that one call of each candidate takes on the device: the least of batches that take turns, so that a machine
/// that is busy for a while is so for all. Ends soon after `deadline`, with at least one call of each. `reset` is
/// called before each batch.
std::vector<double> measure(const Device& device, const std::vector<std::function<void()>>& candidates,
                            Clock::time_point deadline, const std::function<void()>& reset = {});

}  // namespace magneto::runtime
