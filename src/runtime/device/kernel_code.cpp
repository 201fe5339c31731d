#include "runtime/device/kernel_code.h"

#include <string_view>

#include "codegen/kernel.h"
#include "observe/limits.h"
#include "observe/progress.h"
#include "runtime/device/planted_kernel.h"

namespace magneto::runtime {

void compile_kernels(std::vector<KernelCall>& calls) {
  std::vector<loops::Kernel> kernels;
  std::vector<int32_t> variants;
  kernels.reserve(calls.size());
  std::vector<KernelCall*> compiled_calls;
  for (KernelCall& call : calls) {
    std::string name = call.name;
    for (const std::string& origin : call.kernel->origins)
      name += (&origin == call.kernel->origins.data() ? ": " : ", ") + origin;
    if (!observe::allows(observe::Counted::Kernel, name)) continue;
    compiled_calls.push_back(&call);
    kernels.push_back(as_planted(*call.kernel));
    variants.push_back(call.variant);
  }
  try {
    const auto compiled = codegen::compile(kernels, {}, variants,
                                           [](size_t done, size_t total) { Progress::tick(nullptr, done, total); });
    for (size_t i = 0; i < compiled.size(); ++i) compiled_calls[i]->code = compiled[i];
  } catch (const std::runtime_error& error) {
    // A library that is not there is a fact of the installation; anything else is a bug of ours.
    if (std::string_view(error.what()).starts_with("the code generator can't be loaded")) {
      throw NoCodeGenerator(error.what());
    }
    throw;
  }
  for (KernelCall* call : compiled_calls) call->entry = call->code->entry;
}

void run_machine_code(const KernelCall& call, const KernelRun& run, std::span<void* const> pointers) {
  if (run.serial) return run.units > 0 ? call.entry(pointers.data(), run.symbols, 0, run.units) : void();
  codegen::run(*call.code, pointers, run.symbols);
}

}  // namespace magneto::runtime
