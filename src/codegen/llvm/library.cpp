#include "codegen/llvm/library.h"

#include <llvm/Analysis/TargetLibraryInfo.h>
#include <llvm/Analysis/TargetTransformInfo.h>
#include <llvm/CodeGen/TargetPassConfig.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/InitializePasses.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/PassRegistry.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/Transforms/Scalar.h>
#include <llvm/Transforms/Utils.h>
#include <llvm/Transforms/Utils/Cloning.h>
#include <unistd.h>

#include <mutex>

#include "codegen/llvm/addresses.h"
#include "codegen/llvm/emitter.h"
#include "codegen/llvm/variant.h"
#include "codegen/target.h"
#include "loops/normalize.h"

extern "C" {
void LLVMInitializeX86TargetInfo();
void LLVMInitializeX86Target();
void LLVMInitializeX86TargetMC();
void LLVMInitializeX86AsmPrinter();
}

struct MagnetoCompiled {
  std::string parts[7];
};

namespace magneto::codegen {
namespace {

constexpr const char* kTriple = "x86_64-unknown-linux-gnu";

/// A target as LLVM and the schedule need it.
struct Description {
  std::string cpu, features;
  Machine machine;
};

/// From there on stores around the cache were faster than through it, also where somebody reads the result next: by
/// measurement twenty-four times the second cache, whatever other processors share in the third.
int64_t stream_bytes(int64_t second_cache) { return 24 * std::max<int64_t>(second_cache, 1 << 20); }

Description describe_host() {
  Description host;
  host.cpu = llvm::sys::getHostCPUName().str();
  const llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  for (const auto& feature : features) {
    if (!host.features.empty()) host.features += ',';
    host.features += (feature.second ? "+" : "-") + feature.first().str();
  }
  const bool avx512 = features.lookup("avx512f") && features.lookup("avx512bw") && features.lookup("avx512vl") &&
                      features.lookup("avx512dq");
  host.machine = avx512 ? Machine{64, true} : features.lookup("avx2") ? Machine{32, false} : Machine{16, false};
  host.machine.stream_bytes = stream_bytes(sysconf(_SC_LEVEL2_CACHE_SIZE));
  return host;
}

Description describe(Target target) {
  static const Description host = describe_host();
  const TargetRow& row = kTargets[static_cast<int>(target)];
  if (!row.cpu) return host;
  return {row.cpu, "", {row.vector_bytes, row.masks, stream_bytes(0)}};
}

void initialize_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    leave_addresses_alone();
  });
}

std::unique_ptr<llvm::TargetMachine> make_machine(const Description& target) {
  std::string error;
  const llvm::Target* found = llvm::TargetRegistry::lookupTarget(kTriple, error);
  if (!found) throw std::runtime_error("LLVM has no " + std::string(kTriple) + ": " + error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;  // eager rounds between a product and a sum
  std::unique_ptr<llvm::TargetMachine> machine(found->createTargetMachine(kTriple, target.cpu, target.features, options,
                                                                          llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                                                          llvm::CodeGenOptLevel::Default));
  if (!machine) throw std::runtime_error("LLVM can't make code for " + target.cpu);
  return machine;
}

/// Making one takes as long as compiling a small kernel, so they are kept: one for each thread that compiles at once.
class MachinePool {
 public:
  std::unique_ptr<llvm::TargetMachine> take(Target target) {
    {
      std::lock_guard lock(mutex_);
      auto& free = free_[static_cast<int>(target)];
      if (!free.empty()) {
        auto machine = std::move(free.back());
        free.pop_back();
        return machine;
      }
    }
    return make_machine(describe(target));
  }
  void give(std::unique_ptr<llvm::TargetMachine> machine, Target target) {
    std::lock_guard lock(mutex_);
    free_[static_cast<int>(target)].push_back(std::move(machine));
  }
  static MachinePool& instance() {
    static MachinePool& pool = *new MachinePool;  // LLVM's own statics may be gone at exit
    return pool;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<llvm::TargetMachine>> free_[std::size(kTargets)];
};

void run_passes(llvm::Module& module, llvm::TargetMachine& machine, std::initializer_list<llvm::Pass*> wanted) {
  llvm::legacy::PassManager passes;
  passes.add(llvm::createTargetTransformInfoWrapperPass(machine.getTargetIRAnalysis()));
  for (llvm::Pass* pass : wanted) passes.add(pass);
  passes.run(module);
}

/// Small on purpose: the emitter's code is in the shape that it should have; what is left are stack slots, repeated
/// address arithmetic, and invariants of loops.
void optimize(llvm::Module& module, llvm::TargetMachine& machine) {
  run_passes(module, machine,
             {llvm::createPromoteMemoryToRegisterPass(), llvm::createEarlyCSEPass(false),
              llvm::createCFGSimplificationPass()});
  split_addresses(*module.getFunction(kEntryName));
  run_passes(module, machine, {llvm::createEarlyCSEPass(false), llvm::createLICMPass()});
}

void compile(std::string_view text, int options, MagnetoCompiled& out) {
  initialize_llvm();
  loops::Kernel kernel = loops::parse(text);
  if (const auto violations = loops::verify(kernel); !violations.empty()) throw std::invalid_argument(violations[0]);
  loops::normalize(kernel);
  const size_t row = static_cast<unsigned>(options) >> MAGNETO_TARGET_SHIFT;
  if (row >= std::size(kTargets)) throw std::invalid_argument("there is no target " + std::to_string(row));
  const auto target = static_cast<Target>(row);
  const Variant variant{(options & MAGNETO_OTHER_LANES) != 0, (options & MAGNETO_NARROW) != 0,
                        (options & MAGNETO_WIDE) != 0};
  const Schedule schedule = make_schedule(std::move(kernel), describe(target).machine, variant);

  out.parts[MAGNETO_UNITS] = shapes::text(schedule.units);
  out.parts[MAGNETO_COST] = shapes::text(unit_cost(schedule.kernel) * schedule.rows_per_unit);

  llvm::LLVMContext context;
  llvm::Module module("kernel", context);
  auto machine = MachinePool::instance().take(target);
  module.setTargetTriple(kTriple);
  module.setDataLayout(machine->createDataLayout());
  Emitter(module, schedule, (options & MAGNETO_LINES) != 0).run();
  std::string broken;
  llvm::raw_string_ostream report(broken);
  if (llvm::verifyModule(module, &report)) throw std::logic_error("the kernel became broken LLVM IR: " + report.str());
  if (options & MAGNETO_TEXTS) {
    out.parts[MAGNETO_SCHEDULE] = print(schedule);
    llvm::raw_string_ostream stream(out.parts[MAGNETO_IR]);
    module.print(stream, nullptr);
  }
  optimize(module, *machine);
  if (options & MAGNETO_TEXTS) {
    const auto copy_machine = make_machine(describe(target));
    llvm::SmallVector<char, 0> buffer;
    llvm::raw_svector_ostream stream(buffer);
    llvm::legacy::PassManager passes;
    copy_machine->addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::AssemblyFile);
    passes.run(*llvm::CloneModule(module));  // code generation changes the module
    out.parts[MAGNETO_ASSEMBLY].assign(buffer.begin(), buffer.end());
  }
  llvm::SmallVector<char, 0> buffer;
  llvm::raw_svector_ostream stream(buffer);
  llvm::legacy::PassManager passes;
  if (machine->addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::ObjectFile)) {
    throw std::runtime_error("LLVM can't write object files");
  }
  passes.run(module);
  out.parts[MAGNETO_OBJECT].assign(buffer.begin(), buffer.end());
  MachinePool::instance().give(std::move(machine), target);
}

}  // namespace
}  // namespace magneto::codegen

#define EXPORT __attribute__((visibility("default")))

extern "C" {

EXPORT MagnetoCompiled* magneto_codegen_compile(const char* kernel, size_t length, int options) {
  auto* result = new MagnetoCompiled;
  try {
    magneto::codegen::compile({kernel, length}, options, *result);
  } catch (const std::exception& error) {
    result->parts[MAGNETO_ERROR] = error.what();
  }
  return result;
}

EXPORT const char* magneto_codegen_part(const MagnetoCompiled* compiled, int part, size_t* length) {
  *length = compiled->parts[part].size();
  return compiled->parts[part].data();
}

EXPORT void magneto_codegen_free(MagnetoCompiled* compiled) { delete compiled; }

EXPORT int magneto_codegen_version(void) { return MAGNETO_CODEGEN_VERSION; }
}
