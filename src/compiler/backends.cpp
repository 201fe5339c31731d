#include "compiler/backends.h"

#include <algorithm>

namespace magneto::compiler {
namespace {

constexpr Backend kRows[] = {
#define X(name, aliases, level, partition, passes, operators, doc) \
  {#name, aliases, Backend::Level::level, Backend::Partition::partition, passes, Backend::Operators::operators, doc},
#include "compiler/backends.def"
#undef X
};

constexpr size_t kUnnamed = 3;

}  // namespace

std::span<const Backend> backends() { return std::span(kRows).first(std::size(kRows) - kUnnamed); }

const Backend* find_backend(std::string_view name) {
  const auto found = std::ranges::find(backends(), name, &Backend::name);
  return found == backends().end() ? nullptr : &*found;
}

const Backend& callable_backend() { return kRows[std::size(kRows) - 1]; }

const Backend& compilers_backend(Backend::Partition partition) {
  return kRows[std::size(kRows) - (partition == Backend::Partition::MinCut ? 2 : 3)];
}

}  // namespace magneto::compiler
