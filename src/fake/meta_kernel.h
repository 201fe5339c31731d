// Infers the results of an operator without a rule with PyTorch's own kernels, in this order:
//
//   - the overload with `out=`: what the one without says, where the tensors given are like that
//   - a kernel made of other operators, on fakes: those have rules; of structured operators the function that names the
//     CPU's results
//   - the CPU's kernel, on zeros, where these are few
//   - the kernel for the meta device. Of nearly all operators that is Python, part of what PyTorch's compiler consists
//     of: counted, and listed in docs/fake.md.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <span>
#include <string>

#include "fake/session.h"

namespace magneto::fake {

/// Runs `op` on meta tensors that stand for the fakes in `args` and converts the results back: a result that is an
/// argument is that fake itself (its metadata changed as the kernel changed it), one that aliases an argument is a view
/// of it, any other is a new fake. Throws what the kernel throws; refuses if there is no kernel or it needs data.
std::vector<c10::IValue> run_meta_kernel(Session& session, const c10::OperatorHandle& op,
                                         std::span<const c10::IValue> args);

/// How often an operator's results were inferred by Python code of PyTorch's, in this process. Needs the GIL.
std::map<std::string, int64_t>& python_meta_kernels();

/// Whether that may happen to the operator on the CPU: neither a rule nor any of the other ways is there, or but zeros
/// alone, which must be few.
bool has_python_meta_kernel(const c10::OperatorHandle& op);

/// In a handler, of what a rule or a meta kernel threw: throws what the kernel of the CPU says to the same call, with
/// zeros in its tensors. Rules and meta kernels have words of their own, and a program may read them (`str(error)`).
/// Where the arguments are too large or elsewhere, or zeros are accepted, the exception at hand is thrown on.
[[noreturn]] void throw_as_eager(Session& session, const c10::OperatorHandle& op, std::span<const c10::IValue> args);

}  // namespace magneto::fake
