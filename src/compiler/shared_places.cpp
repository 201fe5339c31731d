#include "compiler/shared_places.h"

#include <algorithm>
#include <numeric>

#include "loops/sharing.h"

namespace magneto::runtime {

int32_t first_written_input(const CompiledProgram::Impl& impl) {
  const auto end = static_cast<int32_t>(impl.steps.size());
  for (int32_t s = 0; s < end; ++s) {
    if (impl.steps[s].kernel < 0) continue;
    const KernelCall& call = impl.kernels[impl.steps[s].kernel];
    for (size_t i = 0; i < call.registers.size(); ++i) {
      if (call.roles[i] != loops::Role::In && impl.registers[call.registers[i]].source == Source::Input) return s;
    }
  }
  return end;
}

std::vector<int32_t> find_shared_places(CompiledProgram::Impl& impl,
                                        const std::function<bool(int32_t, int32_t)>& same_bytes) {
  std::vector<int32_t> place(impl.registers.size());
  std::iota(place.begin(), place.end(), 0);
  const int32_t first_write = first_written_input(impl);
  const auto may_share = [&](const Register& old, const Register& made) {
    if (old.prepared || made.prepared) return false;
    if (made.source == Source::Arena) return old.source == Source::Arena;
    return made.source == Source::Fresh &&
           (old.source == Source::Fresh || (impl.pooled && old.source == Source::Input));
  };
  for (int32_t s = 0; s < static_cast<int32_t>(impl.steps.size()); ++s) {
    if (impl.steps[s].kernel < 0) continue;
    const KernelCall& call = impl.kernels[impl.steps[s].kernel];
    std::vector<loops::BufferId> buffers;  // by argument
    for (size_t b = 0; b < call.kernel->buffers.size(); ++b) {
      if (call.kernel->buffers[b].role != loops::Role::Scratch) buffers.push_back(static_cast<loops::BufferId>(b));
    }
    std::vector<bool> taken(call.registers.size(), false);
    for (size_t out = 0; out < call.registers.size(); ++out) {
      const int32_t result = call.registers[out];
      const Register& made = impl.registers[result];
      if (made.first_step != s || (made.source == Source::Fresh && s > first_write)) continue;
      for (size_t in = 0; in < call.registers.size(); ++in) {
        const int32_t operand = call.registers[in];
        const Register& old = impl.registers[operand];
        if (taken[in] || !may_share(old, made) || old.last_step != s || !same_bytes(operand, result)) continue;
        const auto same_memory = [&](int32_t other) {
          return other == operand ||
                 (impl.registers[other].source == Source::View && impl.registers[other].index == operand);
        };
        if (std::count_if(call.registers.begin(), call.registers.end(), same_memory) != 1) continue;
        if (!loops::may_write_over(*call.kernel, buffers[in], buffers[out])) continue;
        if (old.source == Source::Arena) {
          place[result] = place[operand];
        } else {
          impl.registers[result].over = operand;
        }
        taken[in] = true;
        break;
      }
    }
  }
  return place;
}

}  // namespace magneto::runtime
