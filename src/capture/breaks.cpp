#include "capture/breaks.h"

#include <cstring>

#include "capture/hints.h"

namespace magneto {

const BreakInfo& break_info(BreakReason reason) {
  static const BreakInfo infos[] = {
#define X(name, explanation, hint) {#name, explanation, hint},
#include "capture/breaks.def"
#undef X
  };
  return infos[static_cast<size_t>(reason)];
}

BreakInfo break_info(BreakReason reason, std::string_view message) {
  struct Row {
    BreakReason reason;
    std::string_view beginning;
    const char *explanation, *hint;
  };
  static constexpr Row rows[] = {
#define X(reason, beginning, explanation, hint) {BreakReason::reason, beginning, explanation, hint},
#include "capture/hints.def"
#undef X
  };
  const BreakInfo& info = break_info(reason);
  for (const Row& row : rows) {
    if (row.reason == reason && message.starts_with(row.beginning)) return {info.name, row.explanation, row.hint};
  }
  return info;
}

BreakReason reason_named(const char* name) {
#define X(reason, explanation, hint) \
  if (std::strcmp(name, #reason) == 0) return BreakReason::reason;
#include "capture/breaks.def"
#undef X
  return BreakReason::OpaqueCall;
}

}  // namespace magneto
