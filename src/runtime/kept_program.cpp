#include "runtime/kept_program.h"

#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <dlfcn.h>

#include "cache/cache.h"
#include "cache/identity.h"
#include "lower/pack.h"

namespace magneto::runtime {
namespace {

/// What the key has in common for all graphs; empty if this build can't be told from another one.
const std::string& common_key() {
  static const std::string key = [&]() -> std::string {
    Dl_info self{};
    dladdr(reinterpret_cast<void*>(&common_key), &self);
    const std::string id = cache::build_id(self.dli_fname ? self.dli_fname : "");
    if (id.empty()) return "";
    // The build id stands for our version: passes, rules, and how a program is written down.
    return "program, build " + id + ", PyTorch " MAGNETO_TORCH_VERSION ", machine" + cache::machine();
  }();
  return key;
}

}  // namespace

KeptProgram::KeptProgram(const graph::Graph& captured, const std::string& way) : captured_(captured) {
  if (!cache::enabled() || common_key().empty()) return;
  const std::optional<std::string> bytes = lower::pack(captured);
  if (!bytes) return;
  const std::string around = std::to_string(static_cast<int>(c10::get_default_dtype_as_scalartype())) + ", " +
                             std::to_string(at::get_num_threads()) + " threads, " + way + "\n";
  key_ = cache::Hasher().add(common_key()).add("\n").add(around).add(*bytes).finish();
}

std::optional<lower::LoopProgram> KeptProgram::find() const {
  const auto bytes = key_ ? cache::find(*key_) : std::nullopt;
  return bytes ? lower::unpack(*bytes, captured_) : std::nullopt;
}

void KeptProgram::keep(const lower::LoopProgram& program) const {
  if (!key_) return;
  if (const auto bytes = lower::pack(program, captured_)) cache::keep(*key_, *bytes);
}

}  // namespace magneto::runtime
