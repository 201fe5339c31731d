// The whole way from a functional graph to a program of kernels and calls.
#include <stdexcept>

#include "lower/diagram.h"
#include "lower/groups.h"
#include "lower/lookups.h"
#include "lower/lowering.h"

namespace magneto::lower {

namespace {

/// The graph as expressions; lookups that kernels would do a part of are calls (lower/lookups.h).
Lowering lowered(passes::Functional functional, Choices choices) {
  while (true) {
    Lowering lowering(std::move(functional), std::move(choices));
    lowering.run();
    // What is called has its operands in memory, whole: fewer are left each time.
    std::set<int32_t> called = partly_done_lookups(lowering);
    if (called.empty()) return lowering;
    choices = std::move(lowering.program.choices);
    choices.called.merge(called);
    functional = std::move(lowering.program.functional);
  }
}

}  // namespace

LoopProgram lower(passes::Functional functional, graph::StageSink& sink, Choices choices) {
  Lowering lowering = lowered(std::move(functional), std::move(choices));
  sink.offer(graph::Stage::expressions, [&] { return print(lowering); });
  const Groups groups = find_groups(lowering);
  sink.offer(graph::Stage::fusion, [&] { return print(lowering, groups); });
  emit(lowering, groups);
  lowering.program.cut = static_cast<int32_t>(groups.cut.size());
  for (Step& step : lowering.program.steps) {
    if (!step.kernel) continue;
    // Scratch buffers are no arguments.
    std::vector<BufferId>& buffers = step.kernel->buffers;
    std::erase(buffers, kNoBuffer);
    if (const auto violations = loops::verify(step.kernel->kernel); !violations.empty()) {
      throw std::logic_error("kernel " + step.kernel->kernel.name + ": " + violations.front() + "\n" +
                             loops::print(step.kernel->kernel));
    }
  }
  sink.offer(graph::Stage::loops, [&] { return print(lowering.program); });
  sink.offer(graph::Stage::diagram, [&] { return diagram(lowering.program); });
  return std::move(lowering.program);
}

Size LoopProgram::span(BufferId buffer) const {
  const Buffer& info = buffers[buffer];
  Size span = 1;
  for (size_t i = 0; i < info.sizes.size(); ++i) {
    if (info.sizes[i] == 0) return 0;
    span += (info.sizes[i] - 1) * info.strides[i];
  }
  return span;
}

}  // namespace magneto::lower
