// Machine code for kernels: what the runtime calls.
//
// The compiler itself is in a library of its own (codegen/llvm: LLVM, no Python, no PyTorch), loaded at the first
// compile that finds no finished code; this part is in the core, finds, keeps and runs the code.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/target.h"
#include "loops/ir.h"

namespace magneto::codegen {

/// What a kernel writes when an index is out of bounds. Zero before the call; the first error is kept.
struct KernelError {
  int64_t message = 0;  // 1 + position in Kernel::messages
  int64_t index = 0;
  int64_t size = 0;
};

/// Computes the units [begin, end) of a kernel's range. `buffers` has one pointer for each buffer that is not scratch,
/// in order, each to element 0 of the index expressions; and behind them a KernelError* if the kernel may raise.
/// `symbols`: the values of Kernel::symbols. Any alignment of the data will do.
using Entry = void (*)(void* const* buffers, const int64_t* symbols, int64_t begin, int64_t end) noexcept;

/// Ways to run a kernel's loops: the schedule's own, and others that may be faster where its estimates are wrong.
inline constexpr const char* kVariants[] = {"as scheduled", "lanes along other loops", "one register at a time",
                                            "twice as many registers"};

struct CompileOptions {
  /// Others than the host are for tests, which see each kind of code on any CPU that has it.
  Target target = Target::Host;
  /// Of kVariants.
  int32_t variant = 0;
  /// Assembly with `.loc 0 N`: what follows is for value N - 1 of the kernel (of a store: the value stored).
  bool lines = false;
};

class Code;

/// Finished code. Immutable, thread-safe; equal kernels share the code, whose memory goes with the last of them.
class CompiledKernel {
 public:
  Entry entry = nullptr;
  loops::Kernel kernel;
  /// How many units the range has: any split of it may run on any threads. Of symbols. Not always the product of the
  /// parallel extents: a unit may be a tile of them.
  shapes::Expr units;
  /// Bytes read and written by one unit, dearer computation counted as more bytes. Of symbols; at least 1.
  shapes::Expr cost;
  std::shared_ptr<const Code> code;

  int64_t units_of(const int64_t* symbols) const;
  /// Units that are worth a thread: grain_for(the cost of one).
  int64_t grain_of(const int64_t* symbols) const;
};

/// How many units of that cost are worth a thread.
int64_t grain_for(int64_t cost);

/// Compiles kernels, in parallel when there are several; equal ones (whatever their names and origins) once, also
/// across calls and, through the cache on disk, across processes. Throws std::invalid_argument for a kernel that does
/// not verify, std::runtime_error without a code generator or for a target that this CPU can't run. `variants`: of
/// kVariants, for each kernel. `progress` is told now and then, on this thread, how many kernels of how many the
/// compiler has begun.
std::vector<std::shared_ptr<const CompiledKernel>> compile(std::span<const loops::Kernel> kernels,
                                                           const CompileOptions& options = {},
                                                           std::span<const int32_t> variants = {},
                                                           const std::function<void(size_t, size_t)>& progress = {});

/// Runs a kernel on PyTorch's threads. `buffers` as for Entry, without the error. Throws c10::IndexError with the
/// kernel's message when an index is out of bounds. Call it without the GIL where the kernel is large.
void run(const CompiledKernel& kernel, std::span<void* const> buffers, const int64_t* symbols = nullptr);

/// What the compiler makes of a kernel's text: an object file, and the range's units and cost. For the features of this
/// CPU.
struct FinishedCode {
  std::string object, units, cost;
};
/// Asks LLVM, whatever is kept.
FinishedCode generate(const loops::Kernel& kernel, const CompileOptions& options = {});
/// The kernel with finished code, without LLVM. Throws std::runtime_error when the code is damaged.
std::shared_ptr<const CompiledKernel> adopt(const loops::Kernel& kernel, const FinishedCode& code);

/// For people: the schedule in words, LLVM's IR as it was emitted, and the machine code as assembly.
struct KernelTexts {
  std::string schedule, llvm_ir, assembly;
};
KernelTexts texts_of(const loops::Kernel& kernel, const CompileOptions& options = {});

/// How often what happened, since the start: kernels asked for, compiled by LLVM; nanoseconds that took, added up over
/// threads. What the cache on disk gave: cache::counters().
struct CompileStats {
  int64_t requested = 0, compiled = 0, nanoseconds = 0;
};
CompileStats compile_stats();

/// at::parallel_for, which is serial in files that are compiled without OpenMP.
void on_threads(int64_t begin, int64_t end, int64_t grain, const std::function<void(int64_t, int64_t)>& work);

}  // namespace magneto::codegen
