// The whole way from a functional graph to a program of kernels and calls.
#include "lower/diagram.h"
#include "lower/groups.h"
#include "lower/lookups.h"
#include "lower/lowering.h"
#include "observe/phase.h"

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

std::vector<std::string> verify(const LoopProgram& program) {
  std::vector<std::string> violations;
  for (const Step& step : program.steps) {
    if (!step.kernel) continue;
    const loops::Kernel& kernel = step.kernel->kernel;
    for (const std::string& violation : loops::verify(kernel)) {
      violations.push_back("kernel " + kernel.name + ": " + violation + "\n" + loops::print(kernel));
    }
    for (const BufferId id : step.kernel->buffers) {
      const c10::Device device = program.buffers[id].device, other = program.buffers[step.kernel->buffers[0]].device;
      if (device == other) continue;
      violations.push_back("kernel " + kernel.name + ": its buffers lie on " + other.str() + " and " + device.str());
    }
  }
  return violations;
}

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
  }
  LoopProgram program = observe::PhaseScope(nullptr, sink).done(std::move(lowering.program), graph::Stage::loops);
  sink.offer(graph::Stage::diagram, [&] { return diagram(program); });
  return program;
}

}  // namespace magneto::lower
