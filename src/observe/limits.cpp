#include "observe/limits.h"

#include "support/settings.h"

namespace magneto::observe {
namespace {

int64_t limit_of(Counted kind) {
  switch (kind) {
    case Counted::Graph:
      return settings().graph_limit;
    case Counted::Pass:
      return settings().pass_limit;
    case Counted::Kernel:
      return settings().kernel_limit;
  }
  return -1;
}

}  // namespace

bool Numbers::active() const {
  return records || limit_of(Counted::Graph) >= 0 || limit_of(Counted::Pass) >= 0 || limit_of(Counted::Kernel) >= 0;
}

void Numbers::reset() {
  for (auto& list : names) list.clear();
  counts = {0, 0, 0};
}

Numbers& numbers() {
  static auto* numbers = new Numbers;
  return *numbers;
}

bool allows(Counted kind, const std::string& name) {
  Numbers& all = numbers();
  const auto i = static_cast<size_t>(kind);
  const int64_t number = ++all.counts[i];
  if (all.records) all.names[i].push_back(name);
  const int64_t limit = limit_of(kind);
  return limit < 0 || number <= limit;
}

}  // namespace magneto::observe
