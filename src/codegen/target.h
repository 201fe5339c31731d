// What machine code is made for: a row of codegen/targets.def.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

namespace magneto::codegen {

enum class Target : uint8_t {
#define MAGNETO_TARGET(enumerator, name, cpu, vector_bytes, masks) enumerator,
#include "codegen/targets.def"
#undef MAGNETO_TARGET
};

struct TargetRow {
  const char* name;
  const char* cpu;  // LLVM's; null: the CPU at hand
  int vector_bytes;
  bool masks;
};

inline constexpr TargetRow kTargets[] = {
#define MAGNETO_TARGET(enumerator, name, cpu, vector_bytes, masks) {name, cpu, vector_bytes, masks},
#include "codegen/targets.def"
#undef MAGNETO_TARGET
};

inline const char* name_of(Target target) { return kTargets[static_cast<int>(target)].name; }

inline std::optional<Target> target_called(std::string_view name) {
  for (size_t i = 0; i < std::size(kTargets); ++i) {
    if (name == kTargets[i].name) return static_cast<Target>(i);
  }
  return std::nullopt;
}

/// Whether this CPU can run code for it.
inline bool runs_here(Target target) {
  switch (target) {
    case Target::Host:
      return true;
    case Target::Avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Target::Avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
  return false;
}

}  // namespace magneto::codegen
