#include "observe/limits.h"

#include <algorithm>

namespace magneto::observe {

bool Limits::active() const {
  return records || std::ranges::any_of(limits, [](int64_t limit) { return limit >= 0; });
}

void Limits::reset() {
  for (auto& list : names) list.clear();
  counts = {0, 0, 0};
}

Limits& limits() {
  static auto* limits = new Limits;
  return *limits;
}

bool allows(Counted kind, const std::string& name) {
  Limits& all = limits();
  const auto i = static_cast<size_t>(kind);
  const int64_t number = ++all.counts[i];
  if (all.records) all.names[i].push_back(name);
  return all.limits[i] < 0 || number <= all.limits[i];
}

}  // namespace magneto::observe
