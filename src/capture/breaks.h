// Break reasons: the registered causes of side exits (breaks.def).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

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
/// The same, with what is known of a break with this message (hints.def).
BreakInfo break_info(BreakReason reason, std::string_view message);
/// The reason that a table names; OpaqueCall for a name that is none.
BreakReason reason_named(const char* name);

}  // namespace magneto
