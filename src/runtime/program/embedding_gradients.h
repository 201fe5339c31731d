// The gradient of an embedding's table, in memory that is there.
#pragma once

#include "runtime/program/compiled_steps.h"

namespace magneto::runtime {

/// Runs `step`, an embedding's dense backward: each row of the gradient is added to the row of `out` that its index
/// names, in order, so that sums have eager's bits.
void sum_embedding_rows(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers, at::Tensor& out);

}  // namespace magneto::runtime
