// Numbers for what a compiler does, and limits for them: what has a higher number is left out. A tool that bisects
// (magneto.bisect, `python -m magneto doctor`) finds so which graph, pass or kernel a fault came in with.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace magneto::observe {

enum class Counted : uint8_t {
  Graph,   // above the limit its operators run one by one
  Pass,    // above the limit a pass that need not run does not
  Kernel,  // above the limit a kernel runs in the loop IR's interpreter
};
inline constexpr size_t kCountedKinds = 3;

/// What got a number. The limits are settings: `graph_limit`, `pass_limit`, `kernel_limit`.
struct Numbers {
  /// By kind: the names of all that have a number, the first has number 1. Kept while `records`.
  std::array<std::vector<std::string>, kCountedKinds> names;
  std::array<int64_t, kCountedKinds> counts = {0, 0, 0};
  bool records = false;

  /// Something is limited or recorded: then nothing comes from caches, so that numbers are the same in each run.
  bool active() const;
  void reset();
};

/// Of the process. Needs the GIL.
Numbers& numbers();

/// Gives the next of its kind its number. False: it is above the limit.
bool allows(Counted kind, const std::string& name);

}  // namespace magneto::observe
