// Random numbers into planned memory: PyTorch's own, bit for bit, several at once.
#pragma once

#include "runtime/program/compiled_steps.h"

namespace magneto::runtime {

/// Runs `step`, bernoulli(self, p, generator): `out` is one where a draw is below p, else zero.
void draw_bernoulli(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers, at::Tensor& out);

/// Runs `step`, rand or rand_like: `out` is uniform in [0, 1).
void draw_uniform(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers, at::Tensor& out);

}  // namespace magneto::runtime
