// Results in memory that is there, of operators that have no out-variant but make their result by `resize_`, as
// oneDNN's do. What such an operator allocates in each call it gets from the system page by page, which costs a fifth
// of the time of a network on a batch of images.
#pragma once

#include "runtime/program/compiled_steps.h"

namespace magneto::runtime {

/// Runs `step`'s operator so that the first empty tensor that it resizes to `out`'s type and sizes lies where `out`
/// does. Copies the result if it lies elsewhere all the same.
void call_placed(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers, at::Tensor& out);

}  // namespace magneto::runtime
