// Tensors of zeros without memory, of which forward-mode AD makes some. In eager they have a dispatch key of their own,
// on which PyTorch's kernels know that a product is zero, whatever the other factor is. That key lies above ours, and
// these kernels call others on meta tensors, behind the back of the graph: what they do is done here.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "fake/session.h"

namespace magneto::fake {

/// Of a fake, and with it of all views of its storage.
void mark_as_zeros(const at::Tensor& fake);

/// The call where one of its arguments is such a fake: in terms of other operators. False: it is an ordinary call, as
/// are those of views. Throws what eager does if the operator would write to it.
bool call_on_zeros(Session& session, const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace magneto::fake
