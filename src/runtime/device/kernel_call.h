// A kernel of a program, as a device launches it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "loops/ir.h"

namespace magneto::codegen {
class CompiledKernel;
}  // namespace magneto::codegen

namespace magneto::runtime {

struct KernelCall {
  /// Null: the device reads the loop IR itself.
  std::shared_ptr<const codegen::CompiledKernel> code;
  const loops::Kernel* kernel = nullptr;
  int32_t variant = 0;
  /// The register of each buffer that is no scratch.
  std::vector<int32_t> registers;
  /// What the kernel does with each of them.
  std::vector<loops::Role> roles;
  /// Of its first argument among the frame's pointers.
  size_t first_pointer = 0;
  std::string name;
  /// Machine code that the calling thread may run itself; null: only the device knows how to run it.
  void (*entry)(void* const* buffers, const int64_t* symbols, int64_t begin, int64_t end) noexcept = nullptr;
};

/// How much a kernel has to do in a run.
struct KernelRun {
  /// Of Kernel::symbols.
  const int64_t* symbols = nullptr;
  int64_t units = 0;
  /// On one thread, by its `entry`: more are not worth it, and nothing is raised.
  bool serial = false;
  bool may_be_serial = false;
};

}  // namespace magneto::runtime
