// LSTM layers where their gradients are wanted, with dynamic sizes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace magneto::fake {

/// PyTorch's LSTM whose gradients are wanted calls oneDNN for such an input on a CPU.
bool onednn_takes(c10::ScalarType dtype);

/// The operator is an LSTM that has gradients or dropout, on tensors of dynamic sizes, and PyTorch would compute it by
/// oneDNN: what it decomposes to has been called, and its results stand on the stack.
bool call_lstm(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace magneto::fake
