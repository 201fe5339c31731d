// Images that are resized where their gradients are wanted, with dynamic sizes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace magneto::fake {

/// The operator resizes an image of dynamic sizes (`upsample_*.vec`), whose gradient is wanted: the operator that it
/// decomposes to has been called with the sizes as they are, and its result stands on the stack.
bool call_resize(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace magneto::fake
