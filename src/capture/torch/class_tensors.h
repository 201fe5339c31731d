// Tensors whose class says itself what operators do with them (__torch_dispatch__), and that have no data but what
// hangs on them: wrappers, made by torch.Tensor._make_wrapper_subclass.
//
// A stand-in of one is a real wrapper, whose attributes are stand-ins. An operator that comes to it has its class's
// __torch_dispatch__ interpreted, below autograd as in eager, and what that calls is in the graph. Gradients of such
// tensors, which autograd would have to know, are a side exit.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>
#include <span>

#include "capture/capture.h"
#include "fake/class_dispatch.h"

namespace magneto::capture {

/// The object is such a tensor, or a container of one.
bool holds_class_tensor(PyObject* object);

/// A call of torch with such tensors among its arguments runs below autograd: nothing needs gradients. Else a side
/// exit.
class BelowAutograd {
 public:
  BelowAutograd(Capture& capture, std::span<PyObject* const> args);

 private:
  std::optional<at::AutoDispatchBelowADInplaceOrView> below_;
  std::optional<fake::ClassDispatchScope> dispatch_;
};

}  // namespace magneto::capture
