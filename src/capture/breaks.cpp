#include "capture/breaks.h"

#include <cstring>

namespace magneto {

const BreakInfo& break_info(BreakReason reason) {
  static const BreakInfo infos[] = {
#define X(name, explanation, hint) {#name, explanation, hint},
#include "capture/breaks.def"
#undef X
  };
  return infos[static_cast<size_t>(reason)];
}

BreakReason reason_named(const char* name) {
#define X(reason, explanation, hint) \
  if (std::strcmp(name, #reason) == 0) return BreakReason::reason;
#include "capture/breaks.def"
#undef X
  return BreakReason::OpaqueCall;
}

}  // namespace magneto
