// What an operator of a library promised when it was captured, by its fake, against what it gave in a run.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/program/register.h"

namespace magneto::runtime {

/// Between the two sides in the message of a promise that was broken.
inline constexpr char kPromised[] = ", its fake promised ";

/// In the message of the check that stands for a scaler's question whether gradients are finite. Where some are not,
/// CPython runs the segment, which is what scaling them is about.
inline constexpr char kSteps[] = "all gradients are finite, and the optimizer steps";

/// In the message of the check of what a module has noted: `if self.n_averaged > 0`.
inline constexpr char kNoted[] = "what a buffer of a module says is ";

/// Raises where dtype or sizes are others: of a library's operator with kNotSo, so that CPython runs the segment.
/// `fixed`: sizes are the same in all runs.
void check_promise(const c10::OperatorHandle& op, const at::Tensor& given, const Register& promised, bool fixed);

}  // namespace magneto::runtime
