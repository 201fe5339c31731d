// What a CompiledProgram is made of. Built by compiled_builder.cpp, run by compiled_program.cpp.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "observe/program_watch.h"
#include "runtime/device/device.h"
#include "runtime/device/memory_pool.h"
#include "runtime/program/compiled_program.h"
#include "runtime/program/held_memory.h"
#include "runtime/program/prepacked.h"
#include "runtime/program/program_steps.h"
#include "runtime/program/register.h"
#include "runtime/program/sized_plan.h"

namespace magneto::runtime {

/// An operator's kernel that writes its result into a tensor that is there.
using OutCall = void (*)(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers, at::Tensor& out);
/// The out call for `step`'s operator, whose result is of `dtype`; null if it has none.
OutCall find_out_call(const Step& step, c10::ScalarType dtype);

/// Where a register's pointer goes among the pointers of a frame.
struct PointerFill {
  int32_t reg;
  int32_t position;
};

struct CompiledStep {
  /// The kernel, or:
  int32_t kernel = -1;
  /// Pointers that are known only now: an operator has just made their tensors.
  std::vector<PointerFill> fills;
  /// The operator: its arguments are registers, its results too.
  int32_t call = -1;
  OutCall out = nullptr;
  /// Fresh registers to be made before this step.
  std::vector<int32_t> born;
  /// Registers that die with this step: tensor objects that are no part of the arena.
  std::vector<int32_t> dead;
  /// Inputs that no later step needs.
  std::vector<int32_t> spent;
  /// Views to be made before this step.
  std::vector<int32_t> views;
};

struct InputWrite {
  int32_t input;
  int32_t target;  // its register
  int32_t versions;
  /// The register to copy from; -1: a kernel has written the input.
  int32_t from = -1;
};

/// The memory of one call.
struct CallFrame {
  CallFrame() = default;
  ~CallFrame() { held_memory().arenas -= arena_bytes; }
  CallFrame(const CallFrame&) = delete;
  CallFrame& operator=(const CallFrame&) = delete;
  /// Gives the arena so many bytes of the device's.
  void allocate(const Device& device, int64_t bytes);

  int64_t arena_bytes = 0;
  at::Storage arena;
  /// Of a program whose sizes are dynamic.
  std::unique_ptr<FrameSizes> sized;
  /// What the prepared registers and pointers refer to.
  std::shared_ptr<PrepackedMemory> prepared;
  std::vector<at::Tensor> registers;
  /// The arguments of all kernels, one after another.
  std::vector<void*> pointers;
  torch::jit::Stack stack;
};

/// A tensor over memory that is there. Offset: in elements.
at::Tensor strided_over(const Device& device, const at::Storage& storage, c10::ScalarType dtype, int64_t offset,
                        const Register& info);

/// What calls leave for later ones.
struct CallMemory {
  CallMemory(const Device& device, const std::vector<int32_t>& weights, int64_t bytes)
      : prepared(device, weights, bytes) {}
  /// What it held free for its calls serves nobody for sure.
  ~CallMemory() {
    delete spare.load();
    forget_pooled();
  }
  CallMemory(const CallMemory&) = delete;

  Prepacked prepared;
  std::atomic<CallFrame*> spare{nullptr};
  std::mutex mutex;  // only ever tried: another thread may hold it when the process forks
  std::vector<std::unique_ptr<CallFrame>> frames;
};

/// Steps that read weights only: run when the weights have changed.
struct PrepackedSteps {
  std::vector<CompiledStep> steps;
  /// The inputs that they read, and how many bytes of planned memory they make.
  std::vector<int32_t> weights;
  int64_t bytes = 0;
  /// Weights that operators among them read, and what these make.
  std::vector<int32_t> inputs, tensors;
  int64_t tensor_bytes = 0;
  /// Pointers to what they make.
  std::vector<PointerFill> fills;

  /// A kernel's result gets its place in the planned memory.
  void place(Register& made) {
    made.offset = bytes;
    bytes += arena_space(made.bytes);
  }
  /// An operator's result, which has memory of its own.
  void add_tensor(int32_t index, const Register& made) {
    tensors.push_back(index);
    tensor_bytes += made.bytes;
  }
  /// For weights that nothing has been made of.
  std::shared_ptr<CallMemory> memory(const Device& device) const {
    return std::make_shared<CallMemory>(device, weights, bytes);
  }
};

/// The pointers of a frame, one for each argument of each kernel, by when they are filled; those of what operators have
/// just made: CompiledStep::fills.
struct PointerFills {
  /// At the start of a call: what the caller gave, and what is made then.
  std::vector<PointerFill> inputs, starting;
  /// Once for all calls.
  std::vector<PointerFill> kept;
  size_t count = 0;

  int32_t next() { return static_cast<int32_t>(count++); }
};

/// What a call hands out.
struct ProgramOutputs {
  std::vector<int32_t> registers;
  /// View operators that make some of them, run as eager runs them.
  std::vector<Step> views;
  /// By how much versions of registers move.
  std::vector<std::pair<int32_t, int32_t>> bumps;
};

struct CompiledProgram::Impl {
  lower::LoopProgram program;
  const Device* device = nullptr;
  /// Large intermediates have memory of their own, instead of a place in the arena.
  bool pooled = false;
  std::vector<Register> registers;
  std::vector<at::Tensor> constants;
  std::vector<KernelCall> kernels;
  std::vector<Step> calls;
  std::vector<CompiledStep> steps;
  PrepackedSteps prepacked;
  std::vector<InputWrite> writes;
  std::vector<int32_t> last_views;  // views to be made for writes and output views
  ProgramOutputs outputs;
  /// Registers that hold nothing between calls.
  std::vector<int32_t> transient;
  /// Registers to be given a tensor before the first step: inputs that somebody holds, copies, outputs that no step
  /// writes.
  std::vector<int32_t> starting;
  PointerFills fills;
  int64_t arena_bytes = 0;
  /// Empty if the sizes are always the same; those above are then the only ones.
  std::optional<SizedPlan> sized;
  /// By kernel, for those sizes.
  std::vector<KernelRun> kernel_runs;
  size_t input_count = 0;
  /// Null: nobody asks.
  std::shared_ptr<ProgramWatch> watch;

  /// A call's memory: kept from an earlier call, or new.
  std::unique_ptr<CallFrame> take_frame(CallMemory& memory) const;
  static void give_frame(CallMemory& memory, std::unique_ptr<CallFrame> frame);
  std::unique_ptr<CallFrame> make_frame() const;
  void place_tensors(CallFrame& frame, const std::vector<Register>& infos) const;
  /// How much each kernel has to do.
  void plan_kernels();
  /// The frame's memory and tensors for the sizes of a run.
  void resize(CallFrame& frame, const at::Tensor* const* inputs) const;
  /// The frame's registers and pointers over this memory.
  void bind(CallFrame& frame, std::shared_ptr<PrepackedMemory> memory) const;
};

void build_compiled(CompiledProgram::Impl& impl);

/// The program as JSON, for tools. (compiled_data.cpp)
std::string data_text(const CompiledProgram::Impl& impl);

}  // namespace magneto::runtime
