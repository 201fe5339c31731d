// The memory of one call: made, kept for later calls, and fitted to other sizes and weights.
#include <utility>

#include "runtime/program/compiled_steps.h"

namespace magneto::runtime {

at::Tensor strided_over(const Device& device, const at::Storage& storage, c10::ScalarType dtype, int64_t offset,
                        const Register& info) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage), device.keys(),
                                                   c10::scalarTypeToTypeMeta(dtype));
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(info.sizes, info.strides);
  return at::Tensor(std::move(impl));
}

std::unique_ptr<CallFrame> CompiledProgram::Impl::take_frame(CallMemory& memory) const {
  CallFrame* spare = memory.spare.exchange(nullptr, std::memory_order_acq_rel);
  if (spare) return std::unique_ptr<CallFrame>(spare);
  if (const std::unique_lock lock(memory.mutex, std::try_to_lock); lock && !memory.frames.empty()) {
    std::unique_ptr<CallFrame> frame = std::move(memory.frames.back());
    memory.frames.pop_back();
    return frame;
  }
  return make_frame();
}

void CompiledProgram::Impl::give_frame(CallMemory& memory, std::unique_ptr<CallFrame> frame) {
  CallFrame* expected = nullptr;
  if (memory.spare.compare_exchange_strong(expected, frame.get(), std::memory_order_acq_rel)) {
    (void)frame.release();  // `spare` owns it
    return;
  }
  if (const std::unique_lock lock(memory.mutex, std::try_to_lock); lock) memory.frames.push_back(std::move(frame));
}

std::unique_ptr<CallFrame> CompiledProgram::Impl::make_frame() const {
  // Kept across calls: they must be no inference tensors, whatever mode the first call is in.
  const c10::InferenceMode no_inference(false);
  auto frame = std::make_unique<CallFrame>();
  frame->registers.resize(registers.size());
  frame->pointers.resize(fills.count);
  for (size_t r = 0; r < registers.size(); ++r) {
    if (registers[r].source == Source::Constant) frame->registers[r] = constants[registers[r].index];
  }
  if (sized) {
    frame->sized = std::make_unique<FrameSizes>(*sized, registers);
    for (size_t k = 0; k < kernels.size(); ++k) frame->sized->kernels[k].may_be_serial = kernel_runs[k].may_be_serial;
    return frame;
  }
  frame->allocate(*device, arena_bytes);
  place_tensors(*frame, registers);
  return frame;
}

void CallFrame::allocate(const Device& device, int64_t bytes) {
  held_memory().arenas -= std::exchange(arena_bytes, 0);
  arena = {};
  if (bytes == 0) return;
  arena = device.allocate(bytes);
  arena_bytes = bytes;
  held_memory().arenas += bytes;
}

void CompiledProgram::Impl::resize(CallFrame& frame, const at::Tensor* const* inputs) const {
  if (!sized->reader.update(inputs, frame.sized->values)) return;
  const c10::InferenceMode no_inference(false);
  try {
    frame.sized->resize(*sized);
    if (frame.sized->arena_bytes > frame.arena_bytes) frame.allocate(*device, frame.sized->arena_bytes);
    place_tensors(frame, frame.sized->registers);
  } catch (...) {  // so much memory is not there: the frame is for no sizes
    frame.sized->values = {};
    throw;
  }
}

/// The arena's tensors and the pointers that stay from call to call.
void CompiledProgram::Impl::place_tensors(CallFrame& frame, const std::vector<Register>& infos) const {
  const auto place = [&](size_t r, int64_t offset) {
    const Register& info = infos[r];
    at::Tensor& tensor = frame.registers[r];
    if (tensor.defined() && tensor.use_count() == 1 &&
        tensor.storage().unsafeGetStorageImpl() == frame.arena.unsafeGetStorageImpl()) {
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(info.sizes, info.strides, offset);
    } else {
      tensor = strided_over(*device, frame.arena, info.dtype, offset, info);
    }
  };
  const auto elements = [](const Register& info) {
    return info.offset / static_cast<int64_t>(c10::elementSize(info.dtype));
  };
  for (size_t r = 0; r < infos.size(); ++r) {
    const Register& info = infos[r];
    if (info.source == Source::Arena && !info.prepared && info.held) place(r, elements(info));
  }
  for (size_t r = 0; r < infos.size(); ++r) {
    const Register& info = infos[r];
    if (info.source != Source::View) continue;
    const Register& base = infos[info.index];
    if (base.source == Source::Arena && !base.prepared) place(r, elements(base) + info.offset);
  }
  for (const PointerFill& fill : fills.kept) {
    const Register& info = infos[fill.reg];
    frame.pointers[fill.position] = info.source == Source::Arena
                                        ? static_cast<char*>(frame.arena.mutable_data()) + info.offset
                                        : const_cast<void*>(frame.registers[fill.reg].const_data_ptr());
  }
}

void CompiledProgram::Impl::bind(CallFrame& frame, std::shared_ptr<PrepackedMemory> memory) const {
  const c10::InferenceMode no_inference(false);
  const auto over = [&](const Register& info, int64_t bytes, int64_t elements) {
    return strided_over(*device, memory->storage, info.dtype,
                        bytes / static_cast<int64_t>(c10::elementSize(info.dtype)) + elements, info);
  };
  for (size_t r = 0; r < registers.size(); ++r) {
    const Register& info = registers[r];
    if (info.prepared && info.source == Source::Arena) frame.registers[r] = over(info, info.offset, 0);
    if (info.source == Source::View && registers[info.index].prepared)
      frame.registers[r] = over(info, registers[info.index].offset, info.offset);
  }
  for (size_t i = 0; i < memory->tensors.size(); ++i) frame.registers[prepacked.tensors[i]] = memory->tensors[i];
  for (const PointerFill& fill : prepacked.fills) {
    frame.pointers[fill.position] = const_cast<void*>(frame.registers[fill.reg].const_data_ptr());
  }
  frame.prepared = std::move(memory);
}

}  // namespace magneto::runtime
