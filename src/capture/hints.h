// What is known of a break better than of all with its reason (hints.def).
#pragma once

#include <string_view>

#include "capture/breaks.h"

namespace magneto {

/// Of a break with this message.
BreakInfo break_info(BreakReason reason, std::string_view message);

}  // namespace magneto
