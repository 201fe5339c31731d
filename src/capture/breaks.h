// Break reasons: the registered causes of side exits (breaks.def).
#pragma once

#include <cstddef>
#include <cstdint>

namespace magneto {

enum class BreakReason : uint8_t {
#define X(name, explanation, hint) name,
#include "capture/breaks.def"
#undef X
};

struct BreakInfo {
  const char* name;
  const char* explanation;
  const char* hint;
};

const BreakInfo& break_info(BreakReason reason);
/// The reason that a table names; OpaqueCall for a name that is none.
BreakReason reason_named(const char* name);

}  // namespace magneto
