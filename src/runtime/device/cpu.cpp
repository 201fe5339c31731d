#include "runtime/device/cpu.h"

#include <ATen/EmptyTensor.h>

#include <chrono>

#include "codegen/kernel.h"
#include "observe/limits.h"
#include "observe/progress.h"
#include "runtime/device/huge_pages.h"
#include "runtime/device/planted_kernel.h"

namespace magneto::runtime {

std::string_view Cpu::name() const { return "cpu"; }
c10::DeviceType Cpu::type() const { return c10::DeviceType::CPU; }
c10::DispatchKeySet Cpu::keys() const { return c10::DispatchKeySet(c10::DispatchKey::CPU); }
bool Cpu::compiles() const { return true; }

at::Storage Cpu::allocate(int64_t bytes) const {
  at::Storage storage = at::detail::empty_cpu({bytes}, c10::kByte).storage();
  prefer_huge_pages(storage.mutable_data(), static_cast<size_t>(bytes));
  return storage;
}

at::Tensor Cpu::empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype) const {
  return at::detail::empty_strided_cpu(sizes, strides, dtype);
}

void Cpu::compile(std::vector<KernelCall>& calls) const {
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

void Cpu::launch(const KernelCall& call, const KernelRun& run, std::span<void* const> pointers) const {
  if (!call.code) return interpreter_device().launch(call, run, pointers);
  if (run.serial) return run.units > 0 ? call.entry(pointers.data(), run.symbols, 0, run.units) : void();
  codegen::run(*call.code, pointers, run.symbols);
}

void Cpu::finish() const {}  // a launch returns when the kernel has run

double Cpu::measure(const std::function<void()>& work) const {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const Device& cpu_device() {
  static const Cpu device;
  return device;
}

}  // namespace magneto::runtime
