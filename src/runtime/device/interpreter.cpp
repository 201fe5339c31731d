#include "loops/interpreter.h"

#include <c10/util/Exception.h>

#include "runtime/device/cpu.h"

namespace magneto::runtime {
namespace {

class Interpreter final : public Cpu {
 public:
  std::string_view name() const override { return "interpreter"; }
  bool compiles() const override { return false; }
  void compile(std::vector<KernelCall>&) const override {}
  void launch(const KernelCall& call, const KernelRun& run, std::span<void* const> pointers) const override {
    try {
      loops::interpret(*call.kernel, pointers, std::span(run.symbols, call.kernel->symbols.size()));
    } catch (const loops::BoundsError& error) {
      TORCH_CHECK_INDEX(false, error.what());
    }
  }
};

}  // namespace

const Device& interpreter_device() {
  static const Interpreter device;
  return device;
}

}  // namespace magneto::runtime
