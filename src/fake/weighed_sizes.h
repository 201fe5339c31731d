// Floats that PyTorch's code weighs plans with: what it would cost to exchange tensors of such sizes.
#pragma once

#include <c10/core/SymNodeImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>

#include "fake/fake.h"
#include "shapes/expr.h"

namespace magneto::fake {

struct SessionState;

/// The size as such a float. Sums with numbers and with others of that size, and products with numbers, are such floats
/// too. Which of two is less is assumed as a bound of the size; whatever else is asked fixes the size.
c10::SymNode weighed_size(const std::shared_ptr<SessionState>& state, shapes::Expr size);

/// Of dynamic sizes PyTorch's code keeps no plan for those of this run in this scope: as where it is traced.
class Traced {
 public:
  explicit Traced(Session& session);
  ~Traced();
  Traced(const Traced&) = delete;

 private:
  const bool was_included_, was_excluded_;
};

/// Such a scope is open.
bool is_taken_for_traced();
/// One of these: sizes become such floats.
bool are_sizes_weighed();

/// Likewise, and it weighs plans: sizes become such floats.
class Planning {
 public:
  explicit Planning(Session& session);
  ~Planning();
  Planning(const Planning&) = delete;

 private:
  const bool before_;
  const Traced traced_;
};

}  // namespace magneto::fake
