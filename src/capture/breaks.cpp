#include "capture/breaks.h"

#include <cstring>
#include <string>

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
  BreakInfo info = break_info(reason);
  for (const Row& row : rows) {
    if (row.reason != reason || !message.starts_with(row.beginning)) continue;
    return {info.name, row.explanation, row.hint};
  }
  // A break inside of a call that can't be cut there: what helps is what helps against that break.
  std::string_view inner;
  for (const std::string_view around : {"which runs as a whole, ", "that C code calls from here, "}) {
    const size_t at = reason == BreakReason::Callback ? message.find(around) : std::string_view::npos;
    if (at != std::string_view::npos && inner.empty()) inner = message.substr(at + around.size());
  }
  const size_t colon = inner.find(": ");
  if (colon == std::string_view::npos) return info;
  info.hint = break_info(reason_named(std::string(inner.substr(0, colon)).c_str()), inner.substr(colon + 2)).hint;
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
