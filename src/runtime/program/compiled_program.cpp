#include "runtime/program/compiled_program.h"

#include <ATen/core/List.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "codegen/kernel.h"
#include "graph/text.h"
#include "observe/times.h"
#include "ops/library.h"
#include "runtime/device/device.h"
#include "runtime/device/memory_pool.h"
#include "runtime/plan/failed_call.h"
#include "runtime/program/compiled_steps.h"
#include "runtime/program/dispatch_scope.h"
#include "runtime/program/plain.h"
#include "runtime/program/promise.h"

namespace magneto::runtime {
namespace {

/// A weight for operators that only read, but ask for memory as if they would write: what is lazily copied stays so.
at::Tensor read_only(const Device& device, const at::Tensor& tensor, const Register& info) {
  const at::Storage& storage = tensor.storage();
  at::DataPtr data(const_cast<void*>(storage.data()), storage.device());
  return strided_over(device, at::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data)),
                      info.dtype, tensor.storage_offset(), info);
}

class FrameLease {
 public:
  FrameLease(const CompiledProgram::Impl& impl, CallMemory& memory)
      : impl_(impl), memory_(memory), frame_(impl.take_frame(memory)) {}
  ~FrameLease() {
    frame_->stack.clear();
    // Tensors that left, or are the caller's, and after an error whatever a step would have given up.
    for (const int32_t index : impl_.transient) frame_->registers[index].reset();
    CompiledProgram::Impl::give_frame(memory_, std::move(frame_));
  }
  FrameLease(const FrameLease&) = delete;
  CallFrame& operator*() const { return *frame_; }

 private:
  const CompiledProgram::Impl& impl_;
  CallMemory& memory_;
  std::unique_ptr<CallFrame> frame_;
};

class Run {
 public:
  Run(const CompiledProgram::Impl& impl, const Prepacked& prepared, CallFrame& frame, DispatchScope& scope,
      at::Tensor* owned)
      : impl_(impl),
        prepacked_(prepared),
        frame_(frame),
        registers_(frame.registers),
        info_(frame.sized ? frame.sized->registers.data() : impl.registers.data()),
        kernel_runs_(frame.sized ? frame.sized->kernels.data() : impl.kernel_runs.data()),
        scope_(scope),
        owned_(owned) {}

  void run(const at::Tensor* const* inputs, at::Tensor* outputs) {
    recording_ = at::hasCallbacks();
    quick_ = !recording_;
    for (const int32_t r : impl_.starting) {
      const Register& info = info_[r];
      switch (info.source) {
        case Source::Input:
          registers_[r] = *inputs[info.index];
          break;
        case Source::Copy:
          registers_[r] = at::clone(impl_.constants[info.index]);
          break;
        default:
          registers_[r] = fresh(r);
      }
    }
    for (const PointerFill& fill : impl_.fills.inputs) {
      const Register& info = info_[fill.reg];
      frame_.pointers[fill.position] = pointer(*inputs[info.index], info);
    }
    for (const PointerFill& fill : impl_.fills.starting) fill_pointer(fill);
    if (!impl_.prepacked.steps.empty()) prepare(inputs);
    if (impl_.watch && impl_.watch->times.begin()) {
      run_timed(impl_.watch->times);
    } else {
      run_steps();
    }
    for (const int32_t view : impl_.last_views) make_view(view);
    write_inputs();
    for (const Step& view : impl_.outputs.views) call_dispatched(view);
    for (const auto& [index, count] : impl_.outputs.bumps) bump(registers_[index], count);
    for (size_t i = 0; i < impl_.outputs.registers.size(); ++i) outputs[i] = registers_[impl_.outputs.registers[i]];
  }

 private:
  /// What is made of weights alone: as it was kept, or made now.
  void prepare(const at::Tensor* const* inputs) {
    if (std::shared_ptr<PrepackedMemory> kept = prepacked_.find(inputs)) {
      if (frame_.prepared != kept) impl_.bind(frame_, std::move(kept));
      return;
    }
    std::shared_ptr<PrepackedMemory> made = prepacked_.make(inputs, frame_.prepared);
    if (frame_.prepared != made) impl_.bind(frame_, std::move(made));
    for (const int32_t r : impl_.prepacked.inputs) {
      registers_[r] = read_only(*impl_.device, *inputs[info_[r].index], info_[r]);
    }
    for (const CompiledStep& step : impl_.prepacked.steps) run_step(step);
    for (const int32_t r : impl_.prepacked.inputs) registers_[r] = *inputs[info_[r].index];
    PrepackedMemory& memory = *frame_.prepared;
    if (memory.tensors.empty()) memory.count(impl_.prepacked.tensor_bytes);
    memory.tensors.clear();
    for (const int32_t r : impl_.prepacked.tensors) memory.tensors.push_back(registers_[r]);
    prepacked_.keep(frame_.prepared);
  }

  void run_steps() {
    const CompiledStep* step = impl_.steps.data();
    try {
      for (const CompiledStep* end = step + impl_.steps.size(); step != end; ++step) run_step(*step);
    } catch (...) {
      if (step->call >= 0) note_failed_call(impl_.calls[step->call].op);
      while (step-- != impl_.steps.data()) {
        if (step->call >= 0) note_earlier_call(impl_.calls[step->call].op);
      }
      throw;
    }
  }

  void run_timed(StepTimes& times) {
    std::vector<double> taken;
    taken.reserve(impl_.steps.size());
    auto begin = std::chrono::steady_clock::now();
    for (const CompiledStep& step : impl_.steps) {
      run_step(step);
      impl_.device->finish();
      const auto end = std::chrono::steady_clock::now();
      taken.push_back(std::chrono::duration<double, std::nano>(end - begin).count());
      begin = end;
    }
    times.add(taken);
  }

  void run_step(const CompiledStep& step) {
    for (const int32_t index : step.born) {
      const at::Tensor* dying = taken_over(info_[index]);
      registers_[index] = dying ? made_of(c10::Storage(dying->storage()), info_[index]) : fresh(index);
    }
    if (step.kernel >= 0) {
      for (const PointerFill& fill : step.fills) fill_pointer(fill);
      const KernelCall& call = impl_.kernels[step.kernel];
      const KernelRun& run = kernel_runs_[step.kernel];
      if (quick_ && run.serial) {
        // Small kernels, which is where a microsecond counts, need no threads and no bookkeeping.
        if (run.units > 0) call.entry(&frame_.pointers[call.first_pointer], run.symbols, 0, run.units);
      } else {
        run_kernel(call, run);
      }
    } else {
      for (const int32_t view : step.views) make_view(view);
      const PooledResults results(impl_.pooled);
      run_call(step);
    }
    for (const int32_t index : step.dead) registers_[index].reset();
    if (owned_) drop_spent(step);
  }

  /// Inputs that are needed no more die.
  void drop_spent(const CompiledStep& step) {
    for (const int32_t index : step.spent) {
      registers_[index].reset();
      owned_[info_[index].index].reset();
    }
  }

  void run_kernel(const KernelCall& call, const KernelRun& run) {
    const std::span<void* const> pointers(&frame_.pointers[call.first_pointer], call.registers.size());
    if (recording_) {
      RECORD_USER_SCOPE(call.name.c_str());
      return impl_.device->launch(call, run, pointers);
    }
    impl_.device->launch(call, run, pointers);
  }

  /// Reading leaves the memory of lazily copied tensors shared.
  static void* pointer(const at::Tensor& tensor, const Register& info) {
    return info.written ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
  }
  void fill_pointer(const PointerFill& fill) {
    frame_.pointers[fill.position] = pointer(registers_[fill.reg], info_[fill.reg]);
  }

  at::Tensor fresh(int32_t index) {
    const Register& info = info_[index];
    // Other devices' allocators keep large blocks by themselves.
    if (info.bytes < kLeastPooledBytes || impl_.device->type() != c10::DeviceType::CPU) {
      return impl_.device->empty_strided(info.sizes, info.strides, info.dtype);
    }
    return made_of(take_pooled(static_cast<size_t>(info.bytes)), info);
  }

  /// The tensor whose memory a register takes, if nobody else knows of that memory.
  const at::Tensor* taken_over(const Register& info) const {
    if (info.over < 0) return nullptr;
    const Register& old = info_[info.over];
    if (old.source != Source::Input) {  // an operator may have given an alias of it
      return registers_[info.over].storage().use_count() == 1 ? &registers_[info.over] : nullptr;
    }
    if (!owned_) return nullptr;
    const at::Tensor& input = owned_[old.index];
    const c10::Storage& storage = input.storage();
    const size_t holders = registers_[info.over].defined() ? 2 : 1;  // of the tensor: this run
    const bool sole = input.use_count() == holders && storage.use_count() == 1 && is_pooled(storage);
    return sole && input.storage_offset() == 0 && static_cast<int64_t>(storage.nbytes()) >= info.bytes ? &input
                                                                                                       : nullptr;
  }

  at::Tensor made_of(c10::Storage storage, const Register& info) const {
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), impl_.device->keys(),
                                                                 c10::scalarTypeToTypeMeta(info.dtype));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(info.sizes, info.strides);
    return tensor;
  }

  void make_view(int32_t index) {
    const Register& info = info_[index];
    const at::Tensor& base = registers_[info.index];
    registers_[index] =
        strided_over(*impl_.device, base.storage(), base.scalar_type(), base.storage_offset() + info.offset, info);
  }

  void run_call(const CompiledStep& step) {
    const Step& call = impl_.calls[step.call];
    if (recording_) {
      // So that profilers see operators as they do in eager; results land where later steps expect them.
      at::Tensor planned = step.out ? registers_[call.results[0]] : at::Tensor();
      call_dispatched(call);
      if (step.out) keep_planned(call.results[0], std::move(planned));
      return fix_results(call);
    }
    const RunTensors tensors{nullptr, nullptr, registers_.data()};
    if (step.out) return step.out(call, call.keys, tensors, registers_[call.results[0]]);
    if (call.typed) {
      at::Tensor result = call.typed(call, call.keys, tensors);
      if (call.results[0] >= 0) registers_[call.results[0]] = std::move(result);
    } else if (call.mode == CallMode::Direct) {
      push_arguments(call);
      call.op.redispatchBoxed(call.keys, &frame_.stack);
      take_results(call);
    } else {
      return call_dispatched(call), fix_results(call);
    }
    fix_results(call);
  }

  /// A result that was made elsewhere is moved into the tensor that was there for it.
  void keep_planned(int32_t index, at::Tensor planned) {
    const at::Tensor made = std::exchange(registers_[index], std::move(planned));
    registers_[index].copy_(made);
    if (made.unsafeGetTensorImpl()->is_wrapped_number())
      registers_[index].unsafeGetTensorImpl()->set_wrapped_number(true);
  }

  /// Kernels read results by the geometry that the capture saw, and the arena's memory must not be handed on.
  void fix_results(const Step& call) {
    for (const int32_t index : call.results) {
      if (index < 0) continue;
      const Register& info = info_[index];
      if (info.source != Source::Returned) continue;
      at::Tensor& tensor = registers_[index];
      if (tensor.defined() && !tensor.has_storage()) continue;  // in a layout that only other operators know
      const bool in_arena = tensor.defined() && frame_.arena &&
                            tensor.storage().unsafeGetStorageImpl() == frame_.arena.unsafeGetStorageImpl();
      if (!info.read) {
        if (ops::is_of_library(call.op)) check_promise(call.op, tensor, info, !frame_.sized);
        if (in_arena) tensor = tensor.clone();
        if (tensor.defined() && lies_alike(tensor, info)) give_strides(tensor, info);
        continue;
      }
      check_promise(call.op, tensor, info, true);
      if (lies_alike(tensor, info) && !in_arena) {
        give_strides(tensor, info);
        continue;
      }
      at::Tensor copy = impl_.device->empty_strided(info.sizes, info.strides, info.dtype);
      copy.copy_(tensor);
      tensor = std::move(copy);
    }
  }

  /// Each element is where the register says, of as many.
  static bool lies_alike(const at::Tensor& tensor, const Register& info) {
    if (tensor.sizes() != c10::IntArrayRef(info.sizes)) return false;
    bool same = true;
    for (size_t d = 0; d < info.sizes.size(); ++d) {
      same = same && (info.sizes[d] <= 1 || tensor.stride(static_cast<int64_t>(d)) == info.strides[d]);
    }
    return same || tensor.numel() == 0;
  }

  /// A new tensor gets eager's strides in dimensions of one element, too, where they count nothing.
  static void give_strides(const at::Tensor& tensor, const Register& info) {
    if (tensor.strides() == c10::IntArrayRef(info.strides) || tensor.numel() == 0) return;
    if (tensor.use_count() != 1 || tensor.storage().use_count() != 1) return;
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(info.sizes, info.strides, tensor.storage_offset());
  }

  void call_dispatched(const Step& call) {
    push_arguments(call);
    scope_.enter(/*with_tracking=*/true);
    call.op.callBoxed(frame_.stack);
    if (call.waits) wait_for(frame_.stack);
    scope_.enter(/*with_tracking=*/false);
    take_results(call);
  }

  /// For what other threads compute of these tensors.
  static void wait_for(const torch::jit::Stack& started) {
    static const auto wait = c10::Dispatcher::singleton().findSchemaOrThrow("_c10d_functional::wait_tensor", "");
    for (const c10::IValue& result : started) {
      if (result.isTensor()) {
        torch::jit::Stack stack{result};
        wait.callBoxed(stack);
      } else if (result.isTensorList()) {
        wait_for(torch::jit::Stack(result.toListRef().begin(), result.toListRef().end()));
      }
    }
  }

  at::Tensor operand(const Operand& operand) const {
    return operand.index < 0 ? at::Tensor() : registers_[operand.index];
  }

  void push_arguments(const Step& call) {
    torch::jit::Stack& stack = frame_.stack;
    stack.clear();
    for (const Argument& argument : call.arguments) {
      switch (argument.kind) {
        case Argument::Kind::Constant:
          stack.push_back(argument.constant);
          break;
        case Argument::Kind::Size:
          stack.push_back(graph::number_of(argument.size, frame_.sized->values));
          break;
        case Argument::Kind::Tensor:
          stack.emplace_back(operand(argument.tensor));
          if (argument.as_number) stack.back() = stack.back().toTensor().item();
          break;
        case Argument::Kind::TensorList: {
          c10::List<at::Tensor> list;
          for (const Operand& item : argument.list) list.push_back(operand(item));
          stack.emplace_back(std::move(list));
          break;
        }
        case Argument::Kind::OptionalTensorList: {
          c10::List<std::optional<at::Tensor>> list;
          for (const Operand& item : argument.list) {
            list.push_back(item.index < 0 ? std::nullopt : std::optional<at::Tensor>(operand(item)));
          }
          stack.emplace_back(std::move(list));
          break;
        }
      }
    }
  }

  void take_results(const Step& call) {
    size_t next = 0;
    const auto store = [&](at::Tensor&& tensor) {
      TORCH_CHECK(next < call.results.size(), graph::operator_text(call.op),
                  " gave more tensors than when it was captured");
      const int32_t index = call.results[next++];
      if (index >= 0) registers_[index] = std::move(tensor);
    };
    for (c10::IValue& value : frame_.stack) {
      if (value.isTensor()) {
        store(std::move(value).toTensor());
      } else if (value.isTensorList()) {
        for (at::Tensor& tensor : std::move(value).toTensorVector()) store(std::move(tensor));
      }
    }
    TORCH_CHECK(next == call.results.size(), graph::operator_text(call.op),
                " gave fewer tensors than when it was captured");
    frame_.stack.clear();
  }

  static void bump(const at::Tensor& tensor, int32_t count) {
    if (tensor.is_inference()) return;
    for (int32_t i = 0; i < count; ++i) tensor.unsafeGetTensorImpl()->bump_version();
  }

  /// One number without asking PyTorch: an optimizer has a step for each weight.
  static void copy_to(const at::Tensor& target, const at::Tensor& from) {
    const c10::TensorImpl &to = *target.unsafeGetTensorImpl(), &made = *from.unsafeGetTensorImpl();
    const bool plain = to.dim() == 0 && made.dim() == 0 && to.dtype() == made.dtype() && to.is_cpu() && made.is_cpu() &&
                       !target.is_neg() && !from.is_neg();
    if (!plain || target.is_complex()) return void(target.copy_(from));
    std::memcpy(target.mutable_data_ptr(), from.const_data_ptr(), to.itemsize());
  }

  void write_inputs() {
    for (const InputWrite& write : impl_.writes) {
      const at::Tensor& target = registers_[write.target];
      if (write.from >= 0) copy_to(target, registers_[write.from]);
      // Below tracking: the counter is moved here, by as many writes as the program did.
      bump(target, write.versions);
    }
  }

  const CompiledProgram::Impl& impl_;
  const Prepacked& prepacked_;
  CallFrame& frame_;
  std::vector<at::Tensor>& registers_;
  const Register* info_;
  const KernelRun* kernel_runs_;
  DispatchScope& scope_;
  /// The inputs, if the run may drop them.
  at::Tensor* const owned_;
  bool recording_ = false;
  /// Nobody watches, and kernels are machine code.
  bool quick_ = false;
};

/// Some input shares memory with one that the program writes. (Two storages may lie over one memory: an array's.)
bool writes_overlap(const CompiledProgram::Impl& impl, const at::Tensor* const* inputs) {
  if (impl.writes.empty()) return false;
  using Range = std::pair<const char*, const char*>;
  const auto memory = [&](size_t input) {
    const c10::StorageImpl& storage = *inputs[input]->storage().unsafeGetStorageImpl();
    const auto* first = static_cast<const char*>(storage.data());
    return Range(first, first + storage.nbytes());
  };
  c10::SmallVector<Range, 32> written;
  for (const InputWrite& write : impl.writes) {
    if (const Range range = memory(write.input); range.first != range.second) written.push_back(range);
  }
  std::sort(written.begin(), written.end());
  const auto meet = [](const Range& a, const Range& b) { return b.first < a.second; };
  if (std::adjacent_find(written.begin(), written.end(), meet) != written.end()) return true;
  size_t found = 0;
  for (size_t i = 0; i < impl.input_count; ++i) {
    const Range range = memory(i);
    if (range.first == range.second) continue;
    const auto next = std::partition_point(written.begin(), written.end(),
                                           [&](const Range& each) { return each.second <= range.first; });
    found += next != written.end() && next->first < range.second;
  }
  return found != written.size();
}

}  // namespace

CompiledProgram::CompiledProgram(lower::LoopProgram program, const Device& device, bool pooled)
    : impl_(std::make_shared<Impl>()) {
  impl_->program = std::move(program);
  impl_->device = &device;
  impl_->pooled = pooled && device.type() == c10::DeviceType::CPU;
  {
    const StageTime time("compile.backend.memory");
    build_compiled(*impl_);
  }
  const StageTime time("compile.backend.code_generation");
  device.compile(impl_->kernels);
  impl_->plan_kernels();
  memory_ = impl_->prepacked.memory(device);
}

CompiledProgram::CompiledProgram(std::shared_ptr<Impl> impl, std::shared_ptr<CallMemory> memory)
    : impl_(std::move(impl)), memory_(std::move(memory)) {}

std::optional<CompiledProgram> CompiledProgram::for_other_weights() const {
  if (impl_->prepacked.steps.empty()) return std::nullopt;
  return CompiledProgram(impl_, impl_->prepacked.memory(*impl_->device));
}

void CompiledProgram::Impl::plan_kernels() {
  for (const KernelCall& call : kernels) {
    const bool machine = call.code != nullptr;
    std::vector<int32_t> ids;
    for (const loops::Symbol& symbol : call.kernel->symbols) ids.push_back(symbol.id);
    KernelRun run;
    run.may_be_serial = call.entry && !call.kernel->may_raise();
    if (machine) {
      // Of the run that was captured.
      std::vector<int64_t> symbols;
      for (const int32_t symbol : ids) {
        const auto& bindings = program.functional.graph.symbols;
        symbols.push_back(std::ranges::find(bindings, symbol, &graph::SymbolBinding::symbol)->hint);
      }
      run.units = call.code->units_of(symbols.data());
      run.serial = run.may_be_serial && run.units <= call.code->grain_of(symbols.data());
    }
    kernel_runs.push_back(run);
    if (!sized) continue;
    sized->kernels.push_back({machine ? sized->sizes.add(call.code->units) : -1,
                              machine ? sized->sizes.add(call.code->cost) : -1, std::move(ids)});
  }
}
CompiledProgram::~CompiledProgram() = default;
CompiledProgram::CompiledProgram(CompiledProgram&&) noexcept = default;

size_t CompiledProgram::input_count() const { return impl_->input_count; }
size_t CompiledProgram::output_count() const { return impl_->outputs.registers.size(); }
size_t CompiledProgram::kernel_count() const { return impl_->kernels.size(); }
size_t CompiledProgram::extern_count() const { return impl_->calls.size(); }

RunsAsCaptured& runs_as_captured() {
  static RunsAsCaptured counts;
  return counts;
}

bool CompiledProgram::run(const at::Tensor* const* inputs, at::Tensor* outputs, at::Tensor* owned) const {
  DispatchScope scope;
  const auto as_captured = [](std::atomic<int64_t>& count) {
    ++count;
    return false;
  };
  if (!scope.is_plain()) return as_captured(runs_as_captured().watched);
  for (size_t i = 0; i < impl_->input_count; ++i) {
    if (!is_plain(*inputs[i])) return as_captured(runs_as_captured().other_tensors);
  }
  if (writes_overlap(*impl_, inputs)) {
    TORCH_WARN_ONCE(
        "Magneto: inputs of a compiled graph share memory with one that the graph writes. Such calls run its operators "
        "one by one, as eager does; magneto.stats()[\"run_as_captured\"] counts them.");
    return as_captured(runs_as_captured().overlapping);
  }
  scope.enter(/*with_tracking=*/false);
  FrameLease frame(*impl_, *memory_);
  if (impl_->sized) impl_->resize(*frame, inputs);
  Run(*impl_, memory_->prepared, *frame, scope, owned).run(inputs, outputs);
  return true;
}

}  // namespace magneto::runtime
