// Regions as operands of the operators that run them.
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <vector>

#include "runtime/plan/plan.h"

namespace magneto::runtime {

/// The operand that stands for a region, compiled.
c10::IValue region_operand(std::shared_ptr<const TensorComputation> computation);
/// What runs it, which the operand holds.
const TensorComputation& computation_of(const c10::IValue& operand);

}  // namespace magneto::runtime
