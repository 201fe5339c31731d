// Kernels of a program and their machine code.
#pragma once

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "loops/ir.h"

namespace magneto::codegen {
class CompiledKernel;
}  // namespace magneto::codegen

namespace magneto::runtime {

struct KernelCall {
  /// Null: the loop IR's interpreter runs it.
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
  /// Its machine code.
  void (*entry)(void* const* buffers, const int64_t* symbols, int64_t begin, int64_t end) noexcept = nullptr;
};

/// How much a kernel has to do in a run.
struct KernelRun {
  /// Of Kernel::symbols.
  const int64_t* symbols = nullptr;
  int64_t units = 0;
  /// On one thread: more are not worth it, and nothing is raised.
  bool serial = false;
  bool may_be_serial = false;
};

class NoCodeGenerator : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Gives each call its code, up to the limit for kernels (observe/limits.h). Throws NoCodeGenerator without one.
void compile_kernels(std::vector<KernelCall>& calls);

/// Runs a kernel's code, on PyTorch's threads if it is worth that.
void run_machine_code(const KernelCall& call, const KernelRun& run, std::span<void* const> pointers);

}  // namespace magneto::runtime
