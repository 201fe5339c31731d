#include "compiler/ahead.h"

#include <unordered_set>

#include "codegen/finished.h"
#include "graph/aliases.h"
#include "graph/text.h"
#include "lower/pack.h"
#include "python/imported.h"

namespace magneto::compiler {
namespace {

[[noreturn]] void refuse_ahead(const Request& request, const std::string& why) {
  static constinit Imported not_yet("magneto.exc", "NotYet");
  PyErr_Format(not_yet.get(), "magneto.aot_compile of %s: %s", request.place.c_str(), why.c_str());
  throw PythonError{};
}

void append(std::string& out, const std::string& text) {
  const uint64_t length = text.size();
  out.append(reinterpret_cast<const char*>(&length), sizeof length);
  out += text;
}

/// As src/aot/program.cpp reads them: one for each content, in the order of the steps.
std::string codes_of(const lower::LoopProgram& program) {
  std::string out;
  std::unordered_set<std::string> seen;
  for (const lower::Step& step : program.steps) {
    if (!step.kernel) continue;
    const loops::Kernel& kernel = step.kernel->kernel;
    if (!seen.insert(codegen::content_of(kernel, step.kernel->variant)).second) continue;
    const codegen::FinishedCode code = codegen::finished_code(kernel, step.kernel->variant);
    append(out, code.object);
    append(out, code.units);
    append(out, code.cost);
  }
  return out;
}

/// Operators that only Python has.
void refuse_operators(const Request& request, const lower::LoopProgram& program) {
  static const std::unordered_set<std::string> of_python = {"magneto::manual_seed", "magneto::arithmetic",
                                                            "magneto::truncated_normal"};
  for (const lower::Step& step : program.steps) {
    if (step.kernel) continue;
    const graph::AtenNode& node = program.functional.graph.aten_nodes[step.call.node];
    if (graph::has_regions(node))
      refuse_ahead(request, graph::operator_text(node.op) + ", which chooses between graphs");
    if (of_python.contains(node.op.operator_name().name)) {
      refuse_ahead(request, graph::operator_text(node.op) + ", which needs Python");
    }
  }
}

}  // namespace

Ahead compile_ahead(const Request& request) {
  observe::Events events;
  const CompileWay way{.watched = request.watched, .place = request.place, .regions = false};
  for (const graph::Value& value : request.graph.values) {
    if (!passes::is_dense_cpu(value.meta)) refuse_ahead(request, "tensors that are not dense CPU tensors");
  }
  try {
    const lower::LoopProgram program = loops_of(request.graph, way, events);
    refuse_operators(request, program);
    const auto bytes = lower::pack(program, graph::Graph());
    if (!bytes) refuse_ahead(request, "constants of more than 16 MB in the code: make them buffers of the module");
    Ahead made{.program = *bytes, .kernels = codes_of(program), .operators = {}};
    for (const lower::Step& step : program.steps) {
      if (step.kernel) continue;
      const c10::OperatorName& name = program.functional.graph.aten_nodes[step.call.node].op.operator_name();
      made.operators.push_back(name.name);
    }
    return made;
  } catch (const passes::Unsupported& refusal) {
    refuse_ahead(request, refusal.what());
  } catch (const std::runtime_error& error) {
    refuse_ahead(request, error.what());  // no code generator
  }
}

}  // namespace magneto::compiler
