#include "runtime/compiled_program.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "graph/text.h"
#include "loops/interpreter.h"
#include "runtime/compiled_steps.h"
#include "runtime/dispatch_scope.h"
#include "runtime/kernel_code.h"
#include "runtime/plain.h"

namespace magneto::runtime {
namespace {

at::Tensor strided_over(const at::Storage& storage, c10::ScalarType dtype, int64_t offset, const Register& info) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage),
                                                   c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                   c10::scalarTypeToTypeMeta(dtype));
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(info.sizes, info.strides);
  return at::Tensor(std::move(impl));
}

class FrameLease {
 public:
  explicit FrameLease(const CompiledProgram::Impl& impl) : impl_(impl), frame_(impl.take_frame()) {}
  ~FrameLease() {
    frame_->stack.clear();
    // Tensors that left, or are the caller's, and after an error whatever a step would have given up.
    for (const int32_t index : impl_.transient) frame_->registers[index].reset();
    impl_.give_frame(std::move(frame_));
  }
  FrameLease(const FrameLease&) = delete;
  CallFrame& operator*() const { return *frame_; }

 private:
  const CompiledProgram::Impl& impl_;
  std::unique_ptr<CallFrame> frame_;
};

class Run {
 public:
  Run(const CompiledProgram::Impl& impl, CallFrame& frame, DispatchScope& scope)
      : impl_(impl), frame_(frame), registers_(frame.registers), scope_(scope) {}

  void run(const at::Tensor* const* inputs, at::Tensor* outputs) {
    recording_ = at::hasCallbacks();
    for (size_t r = 0; r < impl_.registers.size(); ++r) {
      const Register& info = impl_.registers[r];
      switch (info.source) {
        case Source::Input:
          registers_[r] = *inputs[info.index];
          break;
        case Source::Copy:
          registers_[r] = at::clone(impl_.constants[info.index]);
          break;
        case Source::Fresh:
          registers_[r] = at::detail::empty_strided_cpu(info.sizes, info.strides, info.dtype);
          break;
        default:
          break;
      }
    }
    for (const CompiledStep& step : impl_.steps) run_step(step);
    for (const int32_t view : impl_.last_views) make_view(view);
    write_inputs();
    for (const auto& [index, count] : impl_.bumps) bump(registers_[index], count);
    for (const Step& view : impl_.output_views) call_dispatched(view);
    for (size_t i = 0; i < impl_.outputs.size(); ++i) outputs[i] = registers_[impl_.outputs[i]];
  }

 private:
  void run_step(const CompiledStep& step) {
    if (step.kernel >= 0) {
      run_kernel(impl_.kernels[step.kernel]);
    } else {
      for (const int32_t view : step.views) make_view(view);
      run_call(step);
    }
    for (const int32_t index : step.dead) registers_[index].reset();
  }

  void run_kernel(const KernelCall& call) {
    c10::SmallVector<void*, 16> pointers;
    for (const int32_t index : call.registers) pointers.push_back(registers_[index].data_ptr());
    if (recording_) {
      RECORD_USER_SCOPE(call.name.c_str());
      return run_code(call, pointers);
    }
    run_code(call, pointers);
  }

  void run_code(const KernelCall& call, std::span<void* const> pointers) {
    if (impl_.mode == KernelMode::Machine) return run_machine_code(call, pointers);
    try {
      loops::interpret(*call.kernel, pointers, {});
    } catch (const loops::BoundsError& error) {
      TORCH_CHECK_INDEX(false, error.what());
    }
  }

  void make_view(int32_t index) {
    const Register& info = impl_.registers[index];
    const at::Tensor& base = registers_[info.index];
    registers_[index] = strided_over(base.storage(), base.scalar_type(), base.storage_offset() + info.offset, info);
  }

  void run_call(const CompiledStep& step) {
    const Step& call = impl_.calls[step.call];
    if (recording_) {
      // So that profilers see operators as they do in eager; results land where later steps expect them.
      call_dispatched(call);
      if (step.out) keep_planned(call.results[0]);
      return fix_results(call);
    }
    const Registers tensors{nullptr, nullptr, registers_.data()};
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

  /// A result that was made elsewhere is moved into the arena's tensor.
  void keep_planned(int32_t index) {
    const Register& info = impl_.registers[index];
    if (info.source != Source::Arena) return;
    const at::Tensor made = std::move(registers_[index]);
    registers_[index] =
        strided_over(frame_.arena, info.dtype, info.offset / static_cast<int64_t>(c10::elementSize(info.dtype)), info);
    registers_[index].copy_(made);
  }

  /// Kernels read results by the geometry that the capture saw, and the arena's memory must not be handed on.
  void fix_results(const Step& call) {
    for (const int32_t index : call.results) {
      if (index < 0) continue;
      const Register& info = impl_.registers[index];
      if (info.source != Source::Returned) continue;
      at::Tensor& tensor = registers_[index];
      const bool in_arena = tensor.defined() && frame_.arena &&
                            tensor.storage().unsafeGetStorageImpl() == frame_.arena.unsafeGetStorageImpl();
      if (!info.read) {
        if (in_arena) tensor = tensor.clone();
        continue;
      }
      TORCH_CHECK(
          tensor.defined() && tensor.scalar_type() == info.dtype && tensor.sizes() == c10::IntArrayRef(info.sizes),
          graph::operator_text(call.op), " gave another tensor than when it was captured");
      bool same = true;
      for (size_t d = 0; d < info.sizes.size(); ++d) {
        same = same && (info.sizes[d] <= 1 || tensor.stride(static_cast<int64_t>(d)) == info.strides[d]);
      }
      if ((same || tensor.numel() == 0) && !in_arena) continue;
      at::Tensor copy = at::detail::empty_strided_cpu(info.sizes, info.strides, info.dtype);
      copy.copy_(tensor);
      tensor = std::move(copy);
    }
  }

  void call_dispatched(const Step& call) {
    push_arguments(call);
    scope_.enter(/*with_tracking=*/true);
    call.op.callBoxed(frame_.stack);
    scope_.enter(/*with_tracking=*/false);
    take_results(call);
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
        case Argument::Kind::Tensor:
          stack.emplace_back(operand(argument.tensor));
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

  void write_inputs() {
    for (const InputWrite& write : impl_.writes) {
      const at::Tensor& target = registers_[write.target];
      if (write.from >= 0) target.copy_(registers_[write.from]);
      // Below tracking: the counter is moved here, by as many writes as the program did.
      bump(target, write.versions);
    }
  }

  const CompiledProgram::Impl& impl_;
  CallFrame& frame_;
  std::vector<at::Tensor>& registers_;
  DispatchScope& scope_;
  bool recording_ = false;
};

/// Some input shares memory with one that the program writes.
bool writes_overlap(const CompiledProgram::Impl& impl, const at::Tensor* const* inputs) {
  if (impl.writes.empty()) return false;
  c10::SmallVector<const void*, 32> written, all;
  for (const InputWrite& write : impl.writes) written.push_back(inputs[write.input]->storage().unsafeGetStorageImpl());
  std::sort(written.begin(), written.end());
  if (std::adjacent_find(written.begin(), written.end()) != written.end()) return true;
  size_t found = 0;
  for (size_t i = 0; i < impl.input_count; ++i) {
    found += std::binary_search(written.begin(), written.end(),
                                static_cast<const void*>(inputs[i]->storage().unsafeGetStorageImpl()));
  }
  return found != written.size();
}

}  // namespace

std::unique_ptr<CallFrame> CompiledProgram::Impl::take_frame() const {
  if (CallFrame* frame = spare.exchange(nullptr, std::memory_order_acq_rel)) return std::unique_ptr<CallFrame>(frame);
  if (const std::unique_lock lock(mutex, std::try_to_lock); lock && !frames.empty()) {
    std::unique_ptr<CallFrame> frame = std::move(frames.back());
    frames.pop_back();
    return frame;
  }
  return make_frame();
}

void CompiledProgram::Impl::give_frame(std::unique_ptr<CallFrame> frame) const {
  CallFrame* expected = nullptr;
  if (spare.compare_exchange_strong(expected, frame.get(), std::memory_order_acq_rel)) {
    (void)frame.release();  // `spare` owns it
    return;
  }
  if (const std::unique_lock lock(mutex, std::try_to_lock); lock) frames.push_back(std::move(frame));
}

std::unique_ptr<CallFrame> CompiledProgram::Impl::make_frame() const {
  // Kept across calls: they must be no inference tensors, whatever mode the first call is in.
  const c10::InferenceMode no_inference(false);
  auto frame = std::make_unique<CallFrame>();
  frame->registers.resize(registers.size());
  if (arena_bytes) frame->arena = at::detail::empty_cpu({arena_bytes}, c10::kByte).storage();
  for (size_t r = 0; r < registers.size(); ++r) {
    const Register& info = registers[r];
    if (info.source == Source::Constant) frame->registers[r] = constants[info.index];
    if (info.source != Source::Arena) continue;
    frame->registers[r] =
        strided_over(frame->arena, info.dtype, info.offset / static_cast<int64_t>(c10::elementSize(info.dtype)), info);
  }
  for (size_t r = 0; r < registers.size(); ++r) {
    const Register& info = registers[r];
    if (info.source != Source::View || registers[info.index].source != Source::Arena) continue;
    const at::Tensor& base = frame->registers[info.index];
    frame->registers[r] = strided_over(frame->arena, info.dtype, base.storage_offset() + info.offset, info);
  }
  return frame;
}

CompiledProgram::CompiledProgram(lower::LoopProgram program, KernelMode mode) : impl_(std::make_unique<Impl>()) {
  impl_->program = std::move(program);
  impl_->mode = mode;
  build_compiled(*impl_);
  if (mode == KernelMode::Machine) compile_kernels(impl_->kernels);
}
CompiledProgram::~CompiledProgram() = default;
CompiledProgram::CompiledProgram(CompiledProgram&&) noexcept = default;

size_t CompiledProgram::input_count() const { return impl_->input_count; }
size_t CompiledProgram::output_count() const { return impl_->outputs.size(); }
size_t CompiledProgram::kernel_count() const { return impl_->kernels.size(); }
size_t CompiledProgram::extern_count() const { return impl_->calls.size(); }

bool CompiledProgram::run(const at::Tensor* const* inputs, at::Tensor* outputs) const {
  DispatchScope scope;
  if (!scope.is_plain()) return false;
  for (size_t i = 0; i < impl_->input_count; ++i) {
    if (!is_plain(*inputs[i])) return false;
  }
  if (writes_overlap(*impl_, inputs)) return false;
  scope.enter(/*with_tracking=*/false);
  FrameLease frame(*impl_);
  Run(*impl_, *frame, scope).run(inputs, outputs);
  return true;
}

std::string CompiledProgram::print() const {
  std::string out = "arena: " + std::to_string(impl_->arena_bytes) + " bytes\n";
  constexpr const char* sources[] = {"input", "constant", "copy of constant", "arena", "fresh", "returned", "view of"};
  for (size_t r = 0; r < impl_->registers.size(); ++r) {
    const Register& info = impl_->registers[r];
    out += "r" + std::to_string(r) + ": " + sources[static_cast<int>(info.source)];
    if (info.index >= 0) out += " " + std::to_string(info.index);
    if (info.source == Source::Arena)
      out += " +" + std::to_string(info.offset) + ", " + std::to_string(info.bytes) + " bytes";
    out += "\n";
  }
  const auto name = [](int32_t index) { return index < 0 ? std::string("None") : "r" + std::to_string(index); };
  for (const CompiledStep& step : impl_->steps) {
    if (step.kernel >= 0) {
      const KernelCall& call = impl_->kernels[step.kernel];
      out += "kernel " + call.name + "(";
      for (size_t i = 0; i < call.registers.size(); ++i) out += (i ? ", " : "") + name(call.registers[i]);
      out += ")\n";
      continue;
    }
    const Step& call = impl_->calls[step.call];
    for (size_t i = 0; i < call.results.size(); ++i) out += (i ? ", " : "") + name(call.results[i]);
    out += std::string(call.results.empty() ? "" : " = ") + (step.out                        ? "out "
                                                             : call.typed                    ? "typed "
                                                             : call.mode == CallMode::Direct ? "direct "
                                                                                             : "dispatched ");
    out += graph::operator_text(call.op) + "(";
    bool comma = false;
    for (const Argument& argument : call.arguments) {
      if (argument.kind == Argument::Kind::Tensor)
        out += (std::exchange(comma, true) ? ", " : "") + name(argument.tensor.index);
      for (const Operand& item : argument.list) out += (std::exchange(comma, true) ? ", " : "") + name(item.index);
    }
    out += ")\n";
  }
  for (const InputWrite& write : impl_->writes) {
    out += "input " + std::to_string(write.input) + (write.from < 0 ? " was written" : " = " + name(write.from)) + "\n";
  }
  out += "return (";
  for (size_t i = 0; i < impl_->outputs.size(); ++i) out += (i ? ", " : "") + name(impl_->outputs[i]);
  return out + ")\n";
}

}  // namespace magneto::runtime
