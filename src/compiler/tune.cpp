#include "compiler/tune.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/fill.h>
#include <ATen/ops/uniform.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include "codegen/kernel.h"
#include "compiler/measure.h"
#include "compiler/subgraph.h"
#include "graph/symbols.h"
#include "lower/lowering.h"
#include "observe/progress.h"
#include "passes/effects.h"
#include "python/ref.h"
#include "runtime/device/device.h"
#include "runtime/plan/torch_errors.h"
#include "runtime/program/aten_program.h"
#include "runtime/program/compiled_program.h"
#include "support/gil.h"

namespace magneto::runtime {
namespace {

/// An alternative is taken if it needs at most this part of the time: less is noise.
constexpr double kClearlyLess = 0.95;
/// Sizes up to which products are generated, besides lowering's own rule.
constexpr int64_t kProductLimits[] = {0, 1 << 18, 1 << 21};

/// Runs are repeated: random numbers are drawn from where they were, warnings are said once, by the real run.
class Rehearsal {
 public:
  Rehearsal() : generator_(at::detail::getDefaultCPUGenerator()), state_(generator_.get_state()) {}
  ~Rehearsal() { generator_.set_state(state_); }
  Rehearsal(const Rehearsal&) = delete;

 private:
  struct Silent final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  at::Generator generator_;
  at::Tensor state_;
  Silent silent_;
  c10::WarningUtils::WarningHandlerGuard guard_{&silent_};
};

std::string microseconds(double seconds) {
  char text[32];
  snprintf(text, sizeof text, "%.1f us", seconds * 1e6);
  return text;
}

/// Memory for a value: numbers that no operator is slow or undefined on; indices are zero, which every tensor has.
void fill(const at::Tensor& tensor) {
  static at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  if (at::isFloatingType(tensor.scalar_type())) {
    tensor.uniform_(0.5, 1.5, generator);
  } else {
    tensor.fill_(0);
  }
}

at::Tensor sample_of(const Device& device, const graph::TensorMeta& meta) {
  int64_t span = 1 + meta.storage_offset;
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    if (meta.sizes[d] == 0) span = 0;
    if (span > 0) span += (meta.sizes[d] - 1) * meta.strides[d];
  }
  const at::Tensor memory = device.empty_strided({std::max<int64_t>(span, 0)}, {1}, meta.dtype);
  fill(memory);
  if (span == 0) return device.empty_strided(meta.sizes, meta.strides, meta.dtype);
  return memory.as_strided(meta.sizes, meta.strides, meta.storage_offset);
}

/// A kernel of the program, as often as it is in it.
struct Candidate {
  const lower::KernelStep* step;
  std::vector<lower::KernelStep*> equal;
};

class Tuner {
 public:
  Tuner(const passes::Functional& functional, const Tuning& tuning, const Device& device)
      : functional_(functional),
        tuning_(tuning),
        device_(device),
        deadline_(Clock::now() +
                  std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(tuning.seconds))) {
    for (const graph::AtenNode& node : functional.graph.aten_nodes) {
      repeatable_ = repeatable_ && !passes::traits_of(node.op).effect;
    }
    for (const graph::SymbolBinding& symbol : functional.graph.symbols) captured_.set(symbol.symbol, symbol.hint);
  }

  Tuned run() {
    Tuned result;
    try {
      choose_products();
      result.program = lowered(choices_);
      choose_kernels(result.program);
      if (!choices_.called.empty()) result.program = lowered(choices_);
      result.changed = apply_variants(result.program) + static_cast<int64_t>(choices_.called.size()) +
                       (choices_.small_product ? 1 : 0);
      if (result.changed && repeatable_ && !is_better(result.program)) {
        report_ += "altogether that is no faster: nothing is changed\n";
        result.changed = 0;
      }
    } catch (const PythonError&) {
      throw;
    } catch (const std::exception& error) {  // an operator raised: the real run will say so
      report_ += std::string("measuring ended: ") + error.what() + "\n";
      result.changed = 0;
    }
    if (!result.changed) result.program = lowered({});
    result.report = report_;
    return result;
  }

 private:
  lower::LoopProgram lowered(const lower::Choices& choices) const {
    graph::NoSink nobody;
    return lower::lower(functional_, nobody, choices);
  }

  bool time_left() const {
    if (PyErr_CheckSignals() < 0) throw PythonError{};
    return Clock::now() < deadline_;
  }

  // -- whole programs
  // --------------------------------------------------------------------------------------------------

  /// Of each program the time of a call, with the real inputs.
  std::vector<double> times_of(const std::vector<const CompiledProgram*>& programs) {
    // Copies, because programs may write to their inputs.
    std::vector<at::Tensor> held;
    std::vector<const at::Tensor*> inputs;
    for (const at::Tensor& input : tuning_.inputs) held.push_back(input);
    for (const auto& bump : functional_.bumps) {
      const auto& ids = functional_.graph.inputs;
      const auto at = static_cast<size_t>(std::find(ids.begin(), ids.end(), bump.value) - ids.begin());
      if (at >= held.size()) continue;
      const at::Tensor original = held[at];
      held[at] = device_.empty_strided(original.sizes(), original.strides(), original.scalar_type());
      held[at].copy_(original);
    }
    for (const at::Tensor& input : held) inputs.push_back(&input);
    std::vector<at::Tensor> outputs(functional_.graph.outputs.size());
    std::vector<std::function<void()>> calls;
    for (const CompiledProgram* program : programs) {
      calls.push_back([&inputs, &outputs, program] {
        TORCH_CHECK(program->run(inputs.data(), outputs.data()), "the inputs are no plain tensors");
      });
    }
    const WithoutGil without_gil;
    const Rehearsal rehearsal;
    return measure(device_, calls, deadline_);
  }

  /// Up to which size matrix products are generated.
  void choose_products() {
    const bool any = std::any_of(functional_.graph.aten_nodes.begin(), functional_.graph.aten_nodes.end(),
                                 [](const graph::AtenNode& node) {
                                   const std::string& name = node.op.operator_name().name;
                                   return name.ends_with("mm");  // mm, bmm, addmm, baddbmm
                                 });
    if (!any || !repeatable_) return;
    std::vector<std::optional<int64_t>> limits = {std::nullopt};
    std::vector<CompiledProgram> programs;
    std::vector<const CompiledProgram*> all;
    std::set<std::pair<size_t, size_t>> seen;
    const auto consider = [&](std::optional<int64_t> limit) {
      CompiledProgram program(lowered({.called = {}, .small_product = limit}), device_);
      if (!seen.emplace(program.kernel_count(), program.extern_count()).second) return;
      if (!programs.empty()) limits.push_back(limit);
      programs.push_back(std::move(program));
    };
    Progress::tick("matrix products are measured");
    consider(std::nullopt);
    for (const int64_t limit : kProductLimits) {
      if (time_left()) consider(limit);
    }
    for (const CompiledProgram& program : programs) all.push_back(&program);
    if (all.size() < 2) return;
    const std::vector<double> times = times_of(all);
    report_ += "products: " + microseconds(times[0]) + " as by rule";
    for (size_t i = 1; i < times.size(); ++i) {
      report_ += "; " + microseconds(times[i]) + " generated up to " + std::to_string(*limits[i]) + " multiplications";
    }
    const size_t best = fastest(times);
    choices_.small_product = limits[best];
    report_ += best ? " -> " + std::to_string(*limits[best]) + "\n" : " -> as by rule\n";
  }

  bool is_better(const lower::LoopProgram& changed) {
    // Both are lowered anew: a program is used up by compiling it.
    const CompiledProgram before(lowered({}), device_);
    lower::LoopProgram copy = lowered(choices_);
    apply_variants(copy);
    const CompiledProgram after(std::move(copy), device_);
    const std::vector<double> times = times_of({&before, &after});
    report_ += "altogether " + microseconds(times[0]) + " before, " + microseconds(times[1]) + " after\n";
    return times[1] < times[0] || tuning_.takes >= 0;
  }

  /// The first stays unless another is clearly faster.
  size_t fastest(const std::vector<double>& times) const {
    if (tuning_.takes >= 0) return std::min(static_cast<size_t>(tuning_.takes), times.size() - 1);
    const size_t best = static_cast<size_t>(std::min_element(times.begin(), times.end()) - times.begin());
    return times[best] < times[0] * kClearlyLess ? best : 0;
  }

  // -- kernels
  // ---------------------------------------------------------------------------------------------------------

  void choose_kernels(lower::LoopProgram& program) {
    std::map<std::string, Candidate> found;
    std::vector<std::string> order;
    for (lower::Step& step : program.steps) {
      if (!step.kernel) continue;
      const std::string text = loops::print(step.kernel->kernel, /*bare=*/true);
      auto [entry, added] = found.try_emplace(text, Candidate{step.kernel.get(), {}});
      entry->second.equal.push_back(step.kernel.get());
      if (added) order.push_back(text);
    }
    for (size_t i = 0; i < order.size(); ++i) {
      if (!time_left()) {
        report_ += "no time was left for " + std::to_string(order.size() - i) + " kernels\n";
        return;
      }
      Progress::tick("kernels are measured", i, order.size());
      choose_kernel(program, order[i], found.at(order[i]));
    }
  }

  void choose_kernel(const lower::LoopProgram& program, const std::string& text, const Candidate& candidate) {
    const loops::Kernel& kernel = candidate.step->kernel;
    std::vector<at::Tensor> memory;
    std::vector<void*> pointers;
    for (const lower::BufferId id : candidate.step->buffers) {
      memory.push_back(
          device_.empty_strided({std::max<int64_t>(1, program.span(id).hint())}, {1}, program.buffers[id].dtype));
      pointers.push_back(memory.back().mutable_data_ptr());
    }
    std::vector<int64_t> symbols;
    for (const loops::Symbol& symbol : kernel.symbols) symbols.push_back(captured_(shapes::Expr::symbol(symbol.id)));
    std::vector<std::string> names;
    std::vector<std::function<void()>> calls;
    std::vector<std::shared_ptr<const codegen::CompiledKernel>> codes;
    for (int32_t v = 0; v < static_cast<int32_t>(std::size(codegen::kVariants)); ++v) {
      codes.push_back(codegen::compile({&kernel, 1}, {.variant = v})[0]);
      names.emplace_back(codegen::kVariants[v]);
      calls.emplace_back([&, v] { codegen::run(*codes[v], pointers, symbols.data()); });
    }
    // The operators' own kernels.
    std::optional<AtenProgram> operators;
    std::vector<at::Tensor> samples, results;
    std::vector<const at::Tensor*> inputs;
    if (can_be_called(candidate.step->operators)) {
      const graph::Graph called =
          graph::with_numbers(subgraph(functional_.graph, candidate.step->operators), captured_);
      for (const graph::ValueId id : called.inputs) samples.push_back(sample_of(device_, called.values[id].meta));
      for (const at::Tensor& sample : samples) inputs.push_back(&sample);
      results.resize(called.outputs.size());
      operators.emplace(called);
      names.emplace_back("eager's kernels");
      calls.emplace_back([&] { operators->run(inputs.data(), results.data()); });
    }
    const auto refill = [&] {
      for (const at::Tensor& tensor : memory) fill(tensor);
    };
    std::vector<double> times;
    {
      const WithoutGil without_gil;
      const Rehearsal rehearsal;
      times = measure(device_, calls, deadline_, refill);
    }
    const size_t best = fastest(times);
    report_ += "kernel " + kernel.name + ":";
    for (size_t i = 0; i < times.size(); ++i) report_ += (i ? "; " : " ") + microseconds(times[i]) + " " + names[i];
    report_ += " -> " + names[best] + "\n";
    if (best < std::size(codegen::kVariants)) {
      if (best) variants_[text] = static_cast<int32_t>(best);
      return;
    }
    for (const lower::KernelStep* step : candidate.equal) {
      if (can_be_called(step->operators)) choices_.called.insert(step->operators.begin(), step->operators.end());
    }
  }

  bool can_be_called(const std::vector<int32_t>& operators) const {
    return !operators.empty() && std::none_of(operators.begin(), operators.end(), [&](int32_t index) {
      return passes::is_pinned(functional_.graph.aten_nodes[index]);
    });
  }

  int64_t apply_variants(lower::LoopProgram& program) const {
    int64_t changed = 0;
    for (lower::Step& step : program.steps) {
      if (!step.kernel) continue;
      const auto found = variants_.find(loops::print(step.kernel->kernel, /*bare=*/true));
      if (found == variants_.end()) continue;
      step.kernel->variant = found->second;
      ++changed;
    }
    return changed;
  }

  const passes::Functional& functional_;
  const Tuning& tuning_;
  const Device& device_;
  const Clock::time_point deadline_;
  /// Dynamic sizes: those of the run that was captured.
  graph::SymbolValues captured_;
  /// Nothing happens outside when the program is run once more.
  bool repeatable_ = true;
  lower::Choices choices_;
  /// By the kernel's text.
  std::map<std::string, int32_t> variants_;
  std::string report_;
};

}  // namespace

Tuned tune(const passes::Functional& functional, const Tuning& tuning, const Device& device) {
  return Tuner(functional, tuning, device).run();
}

}  // namespace magneto::runtime
