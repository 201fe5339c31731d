// Calls an operator's kernel on stand-ins for fakes, and makes fakes of what comes back.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <span>

#include "fake/session.h"

namespace magneto::fake {

/// What stands in, and for which kernel.
enum class StandIn : uint8_t {
  /// Tensors on the meta device: the meta kernel, PyTorch's or a user's.
  Meta,
  /// Zeros: the CPU's own kernel.
  Zeros,
  /// Fakes of a session of their own: the kernel that is made of other operators, which come to our rules.
  Parts,
  /// The same on the meta device: the kernel that a structured operator has on devices without one. It names its
  /// results with the function that the CPU's kernel names them with, then calls the overload that writes them.
  Structured,
};

/// The results. Throws what the kernel throws.
std::vector<c10::IValue> call_on_stand_ins(Session& session, const c10::OperatorHandle& op,
                                           std::span<const c10::IValue> args, StandIn stand_in);

/// The same for the sake of what it throws.
void check_on_stand_ins(Session& session, const c10::OperatorHandle& op, std::span<const c10::IValue> args,
                        StandIn stand_in);

}  // namespace magneto::fake
