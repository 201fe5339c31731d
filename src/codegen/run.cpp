// Running a kernel on PyTorch's threads. Compiled with OpenMP (CMakeLists.txt), because at::parallel_for is a template
// over it; the OpenMP runtime is the one that PyTorch has loaded, so that there is one pool of threads.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "codegen/kernel.h"
#include "loops/interpreter.h"

namespace magneto::codegen {

void run(const CompiledKernel& kernel, std::span<void* const> buffers, const int64_t* symbols) {
  const int64_t units = kernel.units_of(symbols);
  if (units <= 0) return;
  KernelError error;
  std::vector<void*> with_error;
  void* const* arguments = buffers.data();
  if (kernel.kernel.may_raise()) {
    with_error.assign(buffers.begin(), buffers.end());
    with_error.push_back(&error);
    arguments = with_error.data();
  }
  const int64_t grain = kernel.grain_of(symbols);
  if (units <= grain) {
    kernel.entry(arguments, symbols, 0, units);
  } else {
    at::parallel_for(0, units, grain,
                     [&](int64_t begin, int64_t end) { kernel.entry(arguments, symbols, begin, end); });
  }
  TORCH_CHECK_INDEX(
      error.message == 0,
      loops::bounds_message(kernel.kernel.messages[error.message ? error.message - 1 : 0], error.index, error.size));
}

void on_threads(int64_t begin, int64_t end, int64_t grain, const std::function<void(int64_t, int64_t)>& work) {
  at::parallel_for(begin, end, grain, work);
}

}  // namespace magneto::codegen
