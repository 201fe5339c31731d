#include "testing/recording_device.h"

#include <utility>

namespace magneto::testing {

void RecordingDevice::note(std::string what) const {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(what));
}

std::vector<std::string> RecordingDevice::take() const {
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

at::Storage RecordingDevice::allocate(int64_t bytes) const {
  note("allocate " + std::to_string(bytes));
  return Cpu::allocate(bytes);
}

at::Tensor RecordingDevice::empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype) const {
  note("empty " + std::to_string(c10::multiply_integers(sizes)));
  return Cpu::empty_strided(sizes, strides, dtype);
}

void RecordingDevice::compile(std::vector<runtime::KernelCall>& calls) const {
  note("compile " + std::to_string(calls.size()));
  Cpu::compile(calls);
  for (runtime::KernelCall& call : calls) call.entry = nullptr;  // no launch goes past the device
}

void RecordingDevice::launch(const runtime::KernelCall& call, const runtime::KernelRun& run,
                             std::span<void* const> pointers) const {
  note("launch " + call.name);
  Cpu::launch(call, run, pointers);
}

void RecordingDevice::finish() const {
  note("finish");
  Cpu::finish();
}

}  // namespace magneto::testing
