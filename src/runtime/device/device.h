// What kernels run on, and where a program's memory comes from.
//
// A compiled program asks its device for memory, hands it its kernels to be made code, and launches them through it.
// There are two: the CPU, and the interpreter of the loop IR, which has the CPU's memory and reads kernels instead of
// compiling them (tests compare the two). docs/adding-a-device.md tells what a third one is made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "runtime/device/kernel_call.h"

namespace magneto::runtime {

class NoCodeGenerator : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Has no state of a program or a call: one object serves all, from any thread. Lives as long as the process.
class Device {
 public:
  virtual ~Device() = default;

  /// For people: "cpu".
  virtual std::string_view name() const = 0;
  /// Where its tensors are.
  virtual c10::DeviceType type() const = 0;
  /// What plain tensors of its own are dispatched by.
  virtual c10::DispatchKeySet keys() const = 0;
  /// Makes code of kernels: they have a schedule, assembly, and units of work that may be split.
  virtual bool compiles() const = 0;

  /// So many bytes, for one call at a time, with undefined contents. Where there are none it throws what eager throws.
  virtual at::Storage allocate(int64_t bytes) const = 0;
  /// A tensor for the caller, with undefined contents. Strides: in elements.
  virtual at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype) const = 0;

  /// Gives each call its code, up to the limit for kernels (observe/limits.h). Throws NoCodeGenerator without one.
  virtual void compile(std::vector<KernelCall>& calls) const = 0;
  /// Runs a kernel, or sees to it that it runs behind what was launched before. `pointers`: to element 0 of each
  /// buffer. What the kernel raises is thrown here, or by `finish`.
  virtual void launch(const KernelCall& call, const KernelRun& run, std::span<void* const> pointers) const = 0;
  /// Waits for what this thread has launched.
  virtual void finish() const = 0;
  /// Seconds that `work` takes on the device, launched by this thread.
  virtual double measure(const std::function<void()>& work) const = 0;
};

const Device& cpu_device();
/// Reads the loop IR, one element after another: for tests, and for kernels that a limit leaves out.
const Device& interpreter_device();

}  // namespace magneto::runtime
