// Floats in tensors from outside that guards read: the step of an optimizer, and other numbers in its state.
#pragma once

#include <ATen/core/Tensor.h>

#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// An unknown number for the float in the tensor, which is one from outside, if at most a number was added to it in
/// place. Null: guards could not tell it.
Ref number_in_state(Capture& capture, const at::Tensor& fake);

}  // namespace magneto::capture
