// What a backend wants and what measuring found (src/compiler/tune.h), where lowering would have decided by itself.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

namespace magneto::lower {

struct Choices {
  /// Operators of the normal form that are called although they have a rule.
  std::set<int32_t> called;
  /// What has a rule is called too unless its generated code has eager's bits.
  bool exact = false;
  /// A matrix product of at most so many multiplications is generated.
  std::optional<int64_t> small_product;
  /// That kernels are to run on, where that decides what is a kernel's unit. PyTorch's number is guarded.
  int64_t threads = 1;
};

}  // namespace magneto::lower
