// Temporary: the families whose rules are not merged yet, so that the engine links.
#include "fake/rules.h"

namespace magneto::fake {

#define X(family) \
  std::span<const RuleRow> family##_rules() { return {}; }
X(reduction)
X(indexing)
X(convolution)
X(attention)
#undef X

}  // namespace magneto::fake
