// The line of the user's program that needed a guard.
#pragma once

#include <cstdint>
#include <string>

#include "python/ref.h"

namespace magneto::guards {

/// Without code: none.
struct UserPlace {
  Ref code;
  int32_t line = -1;

  bool operator==(const UserPlace& place) const { return code.get() == place.code.get() && line == place.line; }
  /// "playground.py:6 in fn", or empty.
  std::string text() const;
};

}  // namespace magneto::guards
