// The backends: what each does with a captured graph is said by its row in backends.def.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace magneto::compiler {

struct Backend {
  enum class Level : uint8_t { Torch, Module, Aten };
  enum class Partition : uint8_t { None, AsEager, MinCut };
  enum class Operators : uint8_t { Called, Generated, Exact, Interpreted, Users };

  /// The captured operators one by one, as they are.
  bool runs_captured() const { return level == Level::Aten && !passes; }
  bool wants_joint_graph() const { return partition != Partition::None; }

  const char *name, *aliases;
  Level level;
  Partition partition;
  bool passes;
  Operators operators;
  const char* doc;
};

/// Those that have a name; the first one is the default.
std::span<const Backend> backends();
/// Null: no row has that name.
const Backend* find_backend(std::string_view name);
/// The row of Python callables.
const Backend& callable_backend();
/// Those of compilers for forward and backward.
const Backend& compilers_backend(Backend::Partition partition);

}  // namespace magneto::compiler
