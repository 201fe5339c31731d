#include "compiler/cached_program.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/DefaultDtype.h>
#include <dlfcn.h>
#include <xmmintrin.h>

#include "cache/cache.h"
#include "cache/identity.h"
#include "lower/pack.h"

namespace magneto::runtime {

const std::string& program_key() {
  static const std::string key = [&]() -> std::string {
    Dl_info self{};
    dladdr(reinterpret_cast<void*>(&program_key), &self);
    const std::string id = cache::build_id(self.dli_fname ? self.dli_fname : "");
    if (id.empty()) return "";
    // The build id stands for our version: passes, rules, and how a program is written down.
    return "program, build " + cache::hex(id) + ", PyTorch " MAGNETO_TORCH_VERSION " for " + at::get_cpu_capability() +
           ", machine" + cache::machine();
  }();
  return key;
}

/// Settings of the process that constants are folded under and alternatives are measured under.
static std::string settings_key() {
  const auto& context = at::globalContext();
  return std::to_string(static_cast<int>(c10::get_default_dtype_as_scalartype())) + ", " +
         std::to_string(at::get_num_threads()) + " threads, products " +
         std::to_string(static_cast<int>(context.float32MatmulPrecision())) + ", oneDNN " +
         std::to_string(context.userEnabledMkldnn()) + ", denormals " + std::to_string(_mm_getcsr() & 0x8040);
}

CachedProgram::CachedProgram(const graph::Graph& captured, const std::string& way) : captured_(captured) {
  if (!cache::enabled() || program_key().empty()) return;
  const std::optional<std::string> bytes = lower::pack(captured);
  if (!bytes) return;
  const std::string around = "\n" + settings_key() + ", " + way + "\n";
  key_ = cache::Hasher().add(program_key()).add(around).add(*bytes).finish();
}

std::optional<lower::LoopProgram> CachedProgram::find(std::chrono::milliseconds patience) {
  auto bytes = key_ ? cache::find(*key_) : std::nullopt;
  if (key_ && !bytes) {
    claim_.emplace(*key_);
    claim_->wait(patience);
    if (claim_->is_made()) bytes = cache::find(*key_);
  }
  return bytes ? lower::unpack(*bytes, captured_) : std::nullopt;
}

void CachedProgram::keep(const lower::LoopProgram& program) const {
  if (!key_) return;
  if (const auto bytes = lower::pack(program, captured_)) cache::keep(*key_, *bytes);
}

}  // namespace magneto::runtime
