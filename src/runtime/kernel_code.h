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
}

namespace magneto::runtime {

struct KernelCall {
  std::shared_ptr<const codegen::CompiledKernel> code;
  const loops::Kernel* kernel = nullptr;
  /// The register of each buffer that is no scratch.
  std::vector<int32_t> registers;
  std::string name;
};

class NoCodeGenerator : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

bool has_code_generator();

/// Gives each call its code. Throws NoCodeGenerator without one.
void compile_kernels(std::vector<KernelCall>& calls);

/// Runs code on PyTorch's threads.
void run_machine_code(const codegen::CompiledKernel& code, std::span<void* const> pointers);

}  // namespace magneto::runtime
