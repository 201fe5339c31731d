#include "capture/breaks.h"

namespace magneto {

const BreakInfo& break_info(BreakReason reason) {
  static const BreakInfo infos[] = {
#define X(name, explanation, hint) {#name, explanation, hint},
#include "capture/breaks.def"
#undef X
  };
  return infos[static_cast<size_t>(reason)];
}

}  // namespace magneto
