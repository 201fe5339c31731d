// What the kernel on the Fake key needs to know of an operator, looked up once per operator and thread.
#pragma once

#include <optional>

#include "fake/rules.h"
#include "fake/session.h"
#include "fake/symbolic.h"

namespace magneto::fake {

struct OperatorFacts {
  /// The native rule, or null.
  Rule rule = nullptr;
  /// What it does to dynamic sizes, or null.
  SymbolicRule symbolic_rule = nullptr;
  /// Has a composite implicit kernel: decomposes into other operators...
  bool composite = false;
  /// ...unless the backend has a kernel of its own.
  bool has_backend_kernels = false;
  /// Its result (data_dependent) or the shape of its result (dynamic_shape) depends on data.
  bool data_dependent = false;
  bool dynamic_shape = false;
  /// Its results follow from its arguments: no write, no random number, no memory that nobody filled.
  bool computes = false;
  /// ...and of its first tensor they need only how it looks (ones_like).
  bool looks_only = false;
  /// The same of an in-place operator, for what it writes.
  bool follows = false;
  bool mutates = false;
  /// Takes a Storage: works on bytes, behind the back of every graph.
  bool takes_storage = false;
  /// Gives the tensor other storage (set_).
  bool replaces_storage = false;
  /// Its result is a tensor of zeros without memory (zero_tensors.h).
  bool makes_zeros = false;
  /// Something to repeat at run time: gives a tensor, mutates one, or is called for its effect.
  bool recorded = true;
  /// Observes (profiler) and is run at once instead.
  bool observer = false;
  /// Hands a tensor just made by Python over to the graph.
  bool lifts = false;
  /// The overload that takes a number where this one takes a second tensor, with the very same meaning.
  std::optional<c10::OperatorHandle> scalar_overload;
  /// Of one that changes the sizes of its tensor in place (`unsqueeze_`): the one that gives a view with these sizes.
  std::optional<c10::OperatorHandle> view_operator;
};

const OperatorFacts& facts_of(const c10::OperatorHandle& op);

}  // namespace magneto::fake
