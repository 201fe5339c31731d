// What a program asks of sizes that `torch.export.Dim` named, beyond what was said of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "guards/sizes.h"

namespace magneto::compiler {

/// A size of an argument that has a name. A name promises that all sizes of its range are fine, and that it is bound to
/// no other name.
struct NamedSize {
  std::string argument;
  int64_t dim = 0;
  std::string name;
  std::optional<int64_t> low, high;
};

/// What does not hold of that, with suggestions what to say, as PyTorch words it; empty: all does. `sizes` are in the
/// order in which their names were given.
std::string violated_names(const std::vector<const guards::SizeAssumptions*>& assumed,
                           const std::vector<NamedSize>& sizes);

}  // namespace magneto::compiler
