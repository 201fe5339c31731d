#include "runtime/kernel_code.h"

namespace magneto::runtime {

bool has_code_generator() { return false; }

void compile_kernels(std::vector<KernelCall>& calls) {
  if (!calls.empty()) throw NoCodeGenerator("this build has no code generator");
}

void run_machine_code(const codegen::CompiledKernel&, std::span<void* const>) {}

}  // namespace magneto::runtime
