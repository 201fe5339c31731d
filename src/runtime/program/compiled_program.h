// Runs a LoopProgram: generated kernels and operators' own kernels over planned memory.
//
// Memory of one call: intermediate tensors lie at planned offsets of one arena, which is kept and used again by later
// calls, as are the tensor objects over it. Outputs have memory of their own (runtime/device/memory_pool.h). Calls at
// the same time have an arena each.
//
// Of a training step much is kept between forward and backward, which dies while the backward runs. There memory is
// pooled: large intermediates lie beside the outputs, so that they, and gradients, come to lie where what was saved has
// died.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "lower/program.h"
#include "observe/program_watch.h"
#include "observe/stages.h"

namespace magneto::runtime {

/// Runs in which the captured operators ran one by one after all, by what was unusual.
struct RunsAsCaptured {
  std::atomic<int64_t> overlapping{0};    // inputs share memory with one that is written
  std::atomic<int64_t> other_tensors{0};  // an input is a lazy tensor, a conjugate...
  std::atomic<int64_t> watched{0};        // a dispatch mode is active
};
RunsAsCaptured& runs_as_captured();

struct CallMemory;
class Device;

class CompiledProgram {
 public:
  /// Compiles the kernels for the device. Throws NoCodeGenerator where it has none.
  CompiledProgram(lower::LoopProgram program, const Device& device, bool pooled = false);
  ~CompiledProgram();
  CompiledProgram(CompiledProgram&&) noexcept;

  /// As AtenProgram::run. False: nothing was done, because something unusual is around (tensor subclasses, modes, lazy
  /// tensors, inputs that share memory with one that is written): the captured operators must be run one by one.
  /// `owned`, if not null: the same inputs, which the run may drop one by one when it needs them no more.
  bool run(const at::Tensor* const* inputs, at::Tensor* outputs, at::Tensor* owned = nullptr) const;

  /// The same code, with memory of its own for what is made of weights. Nothing: it makes nothing of weights.
  std::optional<CompiledProgram> for_other_weights() const;

  size_t input_count() const;
  size_t output_count() const;
  size_t kernel_count() const;
  size_t extern_count() const;
  /// The most memory that a run has at once besides its inputs: the arena, and what is made for each call. Where sizes
  /// differ from run to run: of the one that was captured.
  int64_t planned_peak() const;
  /// Buffers and steps.
  std::string print() const;
  /// The stages from kernels to the plan.
  void offer(graph::StageSink& sink) const;
  /// Has its steps timed from now on.
  std::shared_ptr<ProgramWatch> watch();

  struct Impl;

 private:
  CompiledProgram(std::shared_ptr<Impl> impl, std::shared_ptr<CallMemory> memory);

  std::shared_ptr<Impl> impl_;
  std::shared_ptr<CallMemory> memory_;
};

}  // namespace magneto::runtime
