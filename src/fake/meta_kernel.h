// Infers an operator's results with PyTorch's own kernels: the one for the meta device or, for the few operators whose
// meta kernel takes every device for a GPU and gets the strides wrong, the CPU's on zeros.
#pragma once

#include <span>

#include "fake/session.h"

namespace magneto::fake {

/// Runs `op` on meta tensors that stand for the fakes in `args` and converts the results back: a result that is an
/// argument is that fake itself (its metadata changed as the kernel changed it), one that aliases an argument is a view
/// of it, any other is a new fake. Throws what the kernel throws; refuses if there is no kernel or it needs data.
std::vector<c10::IValue> run_meta_kernel(Session& session, const c10::OperatorHandle& op,
                                         std::span<const c10::IValue> args);

/// In a handler, of what a rule or a meta kernel threw: throws what the kernel of the CPU says to the same call, with
/// zeros in its tensors. Rules and meta kernels have words of their own, and a program may read them (`str(error)`).
/// Where the arguments are too large or elsewhere, or zeros are accepted, the exception at hand is thrown on.
[[noreturn]] void throw_as_eager(Session& session, const c10::OperatorHandle& op, std::span<const c10::IValue> args);

}  // namespace magneto::fake
