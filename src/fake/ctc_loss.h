// CTC loss where its gradient is wanted: on its way to the operator with a derivative PyTorch reads the lengths.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace magneto::fake {

/// The operator is the loss of log probabilities that require gradients: what it decomposes to has been called, and its
/// result stands on the stack.
bool call_ctc_loss(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Puts a kernel of ours for lengths that are numbers above all others.
void register_ctc_loss(torch::Library& whole);

}  // namespace magneto::fake
