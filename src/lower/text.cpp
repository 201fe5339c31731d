// Lowering in words, for people: expressions, what became one kernel and why, the program.
#include "graph/text.h"

#include <algorithm>

#include "lower/groups.h"

namespace magneto::lower {
namespace {

std::string origin_text(const Lowering& lowering, NodeId id) {
  const int32_t origin = lowering.origin_of(id);
  return origin < 0 ? "" : graph::origin_text(lowering.graph(), lowering.graph().aten_nodes[origin]);
}

std::string axes_text(const Group& group) {
  std::string rows, inner;
  for (const Axis& axis : group.axes) {
    std::string& list = axis.inner ? inner : rows;
    list += (list.empty() ? "" : ", ") + text(axis.extent);
  }
  return "rows [" + rows + "]" + (inner.empty() ? "" : ", stages over [" + inner + "]");
}

std::string buffers_text(const LoopProgram& program) {
  std::string out;
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    constexpr const char* kinds[] = {"input", "constant", "extern", "kernel"};
    out += "buffer " + std::to_string(b) + ": " + kinds[static_cast<int>(buffer.kind)];
    if (buffer.value != graph::kNoValue) out += " %" + std::to_string(buffer.value);
    out += std::string(" ") + std::string(graph::dtype_name(buffer.dtype)) + "[";
    for (size_t i = 0; i < buffer.sizes.size(); ++i) out += (i ? ", " : "") + text(buffer.sizes[i]);
    out += "]";
    if (!buffer.device.is_cpu()) out += " @" + buffer.device.str();
    out += buffer.escapes ? " escapes\n" : "\n";
  }
  return out;
}

}  // namespace

std::string print(const Lowering& lowering) {
  std::vector<NodeId> roots;
  std::string out = buffers_text(lowering.program);
  for (const Root& root : lowering.roots) roots.push_back(root.node);
  out += print(lowering.dag, roots, [&](NodeId id) { return origin_text(lowering, id); });
  for (const Root& root : lowering.roots) {
    out += "n" + std::to_string(root.node) + " goes to buffer " + std::to_string(root.buffer) + "\n";
  }
  for (const ExternCall& call : lowering.externs) {
    out += "behind n" + std::to_string(call.position - 1) + ": call " +
           graph::origin_text(lowering.graph(), lowering.graph().aten_nodes[call.node]) + "\n";
  }
  return out;
}

std::string print(const Lowering& lowering, const Groups& groups) {
  std::string out;
  for (size_t g = 0; g < groups.groups.size(); ++g) {
    const Group& group = groups.groups[g];
    out += std::to_string(g) + ": ";
    if (group.call >= 0) {
      const graph::AtenNode& node = lowering.graph().aten_nodes[lowering.externs[group.call].node];
      out += "call " + graph::origin_text(lowering.graph(), node) + "\n";
      continue;
    }
    out += "kernel, " + axes_text(group) + "\n";
    for (const NodeId op : group.ops) {
      out += "  n" + std::to_string(op) + " " + origin_text(lowering, op) + "\n";
      if (groups.cut.contains(op)) out += "    on its own, or elsewhere: the code around it would become too large\n";
      for (const Refusal& refusal : groups.refusals) {
        if (refusal.op == op) out += "    not in " + std::to_string(refusal.group) + ": " + refusal.why + "\n";
      }
    }
  }
  return out;
}

std::string print(const LoopProgram& program) {
  std::string out = buffers_text(program);
  for (const Step& step : program.steps) {
    if (!step.kernel) {
      out += "call " + graph::operator_text(program.functional.graph.aten_nodes[step.call.node].op) + " (operator " +
             std::to_string(step.call.node) + ")\n";
      continue;
    }
    out += "buffers (";
    for (size_t i = 0; i < step.kernel->buffers.size(); ++i)
      out += (i ? ", " : "") + std::to_string(step.kernel->buffers[i]);
    out += ")\n" + loops::print(step.kernel->kernel);
  }
  for (const auto& copy : program.copies)
    out += "copy %" + std::to_string(copy.value) + " to %" + std::to_string(copy.input) + "\n";
  return out;
}

}  // namespace magneto::lower
