// Whose an operator is.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace magneto::ops {

/// Of the program or of a library other than PyTorch: what it computes and asks is known by its schema alone.
bool is_of_library(const c10::OperatorHandle& op);

}  // namespace magneto::ops
