// A compiled program as JSON, for tools: `python -m magneto report` shows it (magneto/_report).
//
//     {"inputs": [[value, name, type]...], "aten": [[line, torch call]...],
//      "codes": [loop IR...], "kernels": [{name, code, operators, values, ...}...],
//      "registers": [[source, type, value, offset, bytes, first step, last step]...],
//      "steps": [{"kernel": k} or {"call": operator, "node": n, ...}...]}
//
// "operators" are positions in "aten"; "values" gives the operator of each value of the kernel's code.
#include <map>
#include <set>

#include "graph/text.h"
#include "runtime/program/compiled_steps.h"
#include "support/json.h"

namespace magneto::runtime {
namespace {

using graph::Json;

void add_graph(Json& json, const graph::Graph& graph) {
  json.key("inputs").open('[');
  for (const graph::ValueId id : graph.inputs) {
    json.open('[').add(id).add(graph.values[id].name).add(graph::type_text(graph.values[id].meta)).close(']');
  }
  json.close(']').key("aten").open('[');
  const std::vector<std::string> lines = graph::aten_lines(graph);
  for (size_t i = 0; i < lines.size(); ++i) {
    json.open('[').add(lines[i]).add(graph.aten_nodes[i].torch_node).close(']');
  }
  json.close(']');
}

/// Equal codes once.
void add_kernels(Json& json, const CompiledProgram::Impl& impl) {
  std::map<std::string, int32_t> number_of;
  std::vector<const std::string*> codes;
  std::vector<int32_t> code_of;
  for (const KernelCall& call : impl.kernels) {
    const auto [entry, added] =
        number_of.emplace(loops::print(*call.kernel, /*bare=*/true), static_cast<int32_t>(codes.size()));
    if (added) codes.push_back(&entry->first);
    code_of.push_back(entry->second);
  }
  json.key("codes").open('[');
  for (const std::string* code : codes) json.add(*code);
  json.close(']').key("kernels").open('[');
  size_t k = 0;
  for (const lower::Step& step : impl.program.steps) {
    if (!step.kernel) continue;
    const KernelCall& call = impl.kernels[k];
    std::string roles;
    for (const loops::Role role : call.roles) roles += "rwxs"[static_cast<size_t>(role)];
    json.open('{').field("name", step.kernel->kernel.name).field("code", code_of[k]).field("variant", call.variant);
    json.key("operators").list(step.kernel->operators).key("values").list(step.kernel->value_operators);
    json.key("registers").list(call.registers).field("roles", roles);
    json.field("units", impl.kernel_runs[k].units).field("serial", impl.kernel_runs[k].serial).close('}');
    ++k;
  }
  json.close(']');
}

int64_t bytes_of(const Register& info) {
  if (info.dtype == c10::ScalarType::Undefined) return 0;
  int64_t elements = 1;
  for (size_t dim = 0; dim < info.sizes.size(); ++dim) {
    if (info.sizes[dim] == 0) return 0;
    elements += (info.sizes[dim] - 1) * info.strides[dim];
  }
  return elements * static_cast<int64_t>(c10::elementSize(info.dtype));
}

int64_t planned_peak(const CompiledProgram::Impl& impl) {
  const std::set<int32_t> results(impl.outputs.registers.begin(), impl.outputs.registers.end());
  const auto steps = static_cast<int32_t>(impl.steps.size());
  std::vector<int64_t> change(impl.steps.size() + 1);  // of what is made for each call, in front of a step
  for (size_t r = 0; r < impl.registers.size(); ++r) {
    const Register& info = impl.registers[r];
    const bool made = info.source == Source::Fresh || info.source == Source::Returned;
    if (!made || info.prepared || info.first_step >= steps) continue;
    const int64_t bytes = bytes_of(info);
    change[info.first_step] += bytes;
    if (info.last_step >= info.first_step && info.last_step < steps && !results.contains(static_cast<int32_t>(r))) {
      change[info.last_step + 1] -= bytes;
    }
  }
  int64_t now = 0, most = 0;
  for (const int64_t by : change) most = std::max(most, now += by);
  return impl.arena_bytes + most;
}

void add_registers(Json& json, const CompiledProgram::Impl& impl) {
  constexpr const char* sources[] = {"input", "constant", "copy", "arena", "fresh", "returned", "view"};
  json.field("arena", impl.arena_bytes)
      .field("peak", planned_peak(impl))
      .field("prepared", impl.prepacked.bytes)
      .key("registers")
      .open('[');
  for (const Register& info : impl.registers) {
    graph::TensorMeta meta;
    meta.dtype = info.dtype;
    meta.sizes = info.sizes;
    meta.strides = info.strides;
    json.open('[').add(info.prepared ? "prepared" : sources[static_cast<size_t>(info.source)]);
    json.add(info.dtype == c10::ScalarType::Undefined ? "" : graph::type_text(meta)).add(info.value);
    json.add(info.offset).add(info.bytes).add(info.last_step < 0 ? -1 : info.first_step).add(info.last_step).close(']');
  }
  json.close(']');
}

void add_step(Json& json, const CompiledProgram::Impl& impl, const CompiledStep& step) {
  json.open('{');
  if (step.kernel >= 0) {
    json.field("kernel", step.kernel).close('}');
    return;
  }
  const Step& call = impl.calls[step.call];
  json.field("call", graph::operator_text(call.op)).field("node", call.node);
  json.field("way", step.out ? "out" : call.typed ? "typed" : call.mode == CallMode::Direct ? "direct" : "dispatched");
  json.key("reads").open('[');
  for (const Argument& argument : call.arguments) {
    if (argument.kind == Argument::Kind::Tensor) json.add(argument.tensor.index);
    for (const Operand& item : argument.list) json.add(item.index);
  }
  json.close(']').key("writes").list(call.results).close('}');
}

}  // namespace

int64_t CompiledProgram::planned_peak() const { return runtime::planned_peak(*impl_); }

std::string data_text(const CompiledProgram::Impl& impl) {
  Json json;
  json.open('{');
  add_graph(json, impl.program.functional.graph);
  add_kernels(json, impl);
  add_registers(json, impl);
  json.key("once").open('[');
  for (const CompiledStep& step : impl.prepacked.steps) add_step(json, impl, step);
  json.close(']').key("steps").open('[');
  for (const CompiledStep& step : impl.steps) add_step(json, impl, step);
  return json.close(']').key("outputs").list(impl.outputs.registers).close('}').take();
}

}  // namespace magneto::runtime
