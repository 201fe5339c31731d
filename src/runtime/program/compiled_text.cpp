// A compiled program in words, for people: its memory, its steps, its kernels' code.
#include <map>

#include "codegen/kernel.h"
#include "graph/text.h"
#include "lower/rules.h"
#include "runtime/program/compiled_steps.h"

namespace magneto::runtime {
namespace {

std::string register_name(int32_t index) { return index < 0 ? "None" : "r" + std::to_string(index); }

std::string list_text(const std::vector<int64_t>& items, const char* open, const char* close) {
  std::string out = open;
  for (size_t i = 0; i < items.size(); ++i) out += (i ? ", " : "") + std::to_string(items[i]);
  return out + close;
}

std::string buffers_text(const CompiledProgram::Impl& impl) {
  std::string out = "arena: " + std::to_string(impl.arena_bytes) + " bytes\n";
  constexpr const char* sources[] = {"input", "constant", "copy of constant", "arena", "fresh", "returned", "view of"};
  for (size_t r = 0; r < impl.registers.size(); ++r) {
    const Register& info = impl.registers[r];
    out += register_name(static_cast<int32_t>(r)) + ": " + sources[static_cast<int>(info.source)];
    if (info.index >= 0) out += (info.source == Source::View ? " r" : " ") + std::to_string(info.index);
    if (info.prepared) out += ", prepared";
    if (info.over >= 0) out += " over " + register_name(info.over);
    if (info.source == Source::Arena) {
      out += " +" + std::to_string(info.offset) + ", " + std::to_string(info.bytes) + " bytes";
    }
    if (info.dtype != c10::ScalarType::Undefined) {
      out += " " + std::string(graph::dtype_name(info.dtype)) + list_text(info.sizes, "[", "]");
      if (info.strides != graph::contiguous_strides(info.sizes)) out += list_text(info.strides, "{", "}");
    }
    if (info.value != graph::kNoValue) out += " %" + std::to_string(info.value);
    if (info.first_step <= info.last_step) {
      out += ", steps " + std::to_string(info.first_step) + " to " + std::to_string(info.last_step);
    }
    out += "\n";
  }
  return out;
}

std::string call_text(const Step& call, const char* way) {
  std::string out;
  for (size_t i = 0; i < call.results.size(); ++i) out += (i ? ", " : "") + register_name(call.results[i]);
  out += (call.results.empty() ? "" : " = ") + std::string(way) + graph::operator_text(call.op) + "(";
  bool comma = false;
  for (const Argument& argument : call.arguments) {
    if (argument.kind == Argument::Kind::Tensor) {
      out += (std::exchange(comma, true) ? ", " : "") + register_name(argument.tensor.index);
    }
    for (const Operand& item : argument.list) {
      out += (std::exchange(comma, true) ? ", " : "") + register_name(item.index);
    }
  }
  return out + ")\n";
}

std::string steps_text(const CompiledProgram::Impl& impl) {
  std::string out;
  const size_t prepared = impl.prepacked.steps.size();
  for (size_t s = 0; s < prepared + impl.steps.size(); ++s) {
    const CompiledStep& step = s < prepared ? impl.prepacked.steps[s] : impl.steps[s - prepared];
    out += s < prepared ? "once: " : std::to_string(s - prepared) + ": ";
    if (step.kernel < 0) {
      const Step& call = impl.calls[step.call];
      out += call_text(call, step.out                        ? "out "
                             : call.typed                    ? "typed "
                             : call.mode == CallMode::Direct ? "direct "
                                                             : "dispatched ");
      continue;
    }
    const KernelCall& call = impl.kernels[step.kernel];
    out += "kernel " + std::to_string(step.kernel) + " " + call.name + "(";
    for (size_t i = 0; i < call.registers.size(); ++i) out += (i ? ", " : "") + register_name(call.registers[i]);
    out += ")";
    if (call.code) {
      const KernelRun& run = impl.kernel_runs[step.kernel];
      out += ", " + std::to_string(run.units) + " units" + (run.serial ? ", one thread" : ", on all threads");
    }
    out += "\n";
  }
  for (const InputWrite& write : impl.writes) {
    out += "input " + std::to_string(write.input) +
           (write.from < 0 ? " was written" : " = " + register_name(write.from)) + "\n";
  }
  for (const Step& view : impl.outputs.views) out += call_text(view, "");
  out += "return (";
  for (size_t i = 0; i < impl.outputs.registers.size(); ++i)
    out += (i ? ", " : "") + register_name(impl.outputs.registers[i]);
  return out + ")\n";
}

/// What the code generator makes of the kernels, equal ones once. `comment` starts a line that is none of the text.
std::string kernels_text(const CompiledProgram::Impl& impl, const char* comment,
                         std::string codegen::KernelTexts::* part) {
  using Key = std::pair<std::string, int32_t>;
  const auto key_of = [&](size_t k) {
    return Key(loops::print(*impl.kernels[k].kernel, /*bare=*/true), impl.kernels[k].variant);
  };
  std::map<Key, std::vector<size_t>> same;
  for (size_t k = 0; k < impl.kernels.size(); ++k) same[key_of(k)].push_back(k);
  std::string out;
  for (size_t k = 0; k < impl.kernels.size(); ++k) {
    const loops::Kernel& kernel = *impl.kernels[k].kernel;
    const std::vector<size_t>& equals = same.at(key_of(k));
    out += std::string(comment) + " kernel " + std::to_string(k) + " " + impl.kernels[k].name + "\n";
    for (const std::string& origin : kernel.origins) out += std::string(comment) + "   " + origin + "\n";
    if (equals.front() == k) {
      out += codegen::texts_of(kernel, {.variant = impl.kernels[k].variant}).*part + "\n";
    } else {
      out += std::string(comment) + "   the same code as kernel " + std::to_string(equals.front()) + "\n\n";
    }
  }
  return out;
}

/// Where time goes that fusion would save.
std::string hints_text(const CompiledProgram::Impl& impl) {
  std::string out;
  const graph::Graph& graph = impl.program.functional.graph;
  if (const int32_t cut = impl.program.cut) {
    out +=
        std::to_string(cut) + " expressions are no part of a larger kernel, whose code would take too long to make\n";
  }
  for (const CompiledStep& step : impl.steps) {
    if (step.kernel >= 0) {
      const KernelCall& call = impl.kernels[step.kernel];
      constexpr int64_t kMuch = 1 << 20;
      if (call.code && impl.kernel_runs[step.kernel].units == 1 && call.code->cost.is_constant() &&
          call.code->cost.number() > kMuch) {
        out += call.name + " moves " + std::to_string(call.code->cost.number() >> 20) + " MB on one thread\n";
      }
      continue;
    }
    const Step& call = impl.calls[step.call];
    if (step.out) continue;
    out += graph::origin_text(graph, graph.aten_nodes[call.node]) +
           (lower::find_row(call.op) ? " is called, not generated: not in this case (dtype, layout or arguments)\n"
                                     : " is called, not generated: it has no rule\n");
  }
  for (const InputWrite& write : impl.writes) {
    if (write.from >= 0) out += "input " + std::to_string(write.input) + " is computed aside and copied\n";
  }
  return out;
}

}  // namespace

std::string CompiledProgram::print() const { return buffers_text(*impl_) + steps_text(*impl_); }

std::shared_ptr<ProgramWatch> CompiledProgram::watch() {
  if (!impl_->watch) {
    impl_->watch = std::make_shared<ProgramWatch>(impl_->steps.size(), steps_text(*impl_), data_text(*impl_));
  }
  return impl_->watch;
}

void CompiledProgram::offer(graph::StageSink& sink) const {
  using codegen::KernelTexts;
  using graph::Stage;
  if (impl_->device->compiles()) {
    sink.offer(Stage::schedule, [&] { return kernels_text(*impl_, "#", &KernelTexts::schedule); });
    sink.offer(Stage::llvm_ir, [&] { return kernels_text(*impl_, ";", &KernelTexts::llvm_ir); });
    sink.offer(Stage::assembly, [&] { return kernels_text(*impl_, "#", &KernelTexts::assembly); });
  }
  sink.offer(Stage::buffers, [&] { return buffers_text(*impl_); });
  sink.offer(Stage::plan, [&] { return steps_text(*impl_); });
  sink.offer(Stage::data, [&] { return data_text(*impl_); });
  sink.offer(Stage::hints, [&] { return hints_text(*impl_); });
}

}  // namespace magneto::runtime
