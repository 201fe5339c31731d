// Temporary: no native rules, so that the engine links.
#include "fake/rules.h"

namespace magneto::fake {

#define X(family) \
  std::span<const RuleRow> family##_rules() { return {}; }
MAGNETO_RULE_FAMILIES(X)
#undef X

}  // namespace magneto::fake
