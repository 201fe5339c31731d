// Tensors whose class says itself what operators do with them (__torch_dispatch__), and that have no data but what
// hangs on them: wrappers, made by torch.Tensor._make_wrapper_subclass.
//
// A stand-in of one is a real wrapper, whose attributes are stand-ins. An operator that comes to it has its class's
// __torch_dispatch__ interpreted, below autograd as in eager, and what that calls is in the graph.
//
// Where gradients are needed, autograd's nodes stand above the class, as in eager: they are made of the stand-ins, and
// what the engine calls for them at the segment's end is interpreted likewise. The graph's torch calls, which are what
// the class has called, have other gradients: what needs them (gradients of gradients) is an error.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>
#include <span>

#include "capture/capture.h"
#include "fake/class_dispatch.h"

namespace magneto::capture {

/// The object is such a tensor, or a container of one.
bool holds_class_tensor(PyObject* object);

/// torch.Tensor._make_wrapper_subclass, called with a tuple and a dict. Borrowed.
PyObject* wrapper_maker();

/// While one lives, operators on such tensors have their class's __torch_dispatch__ interpreted, in an order of keys
/// that makes no views of them: what autograd knows of views it would make tensors of no class for.
class AboveClasses {
 public:
  explicit AboveClasses(Capture& capture);

 private:
  const c10::impl::ExcludeDispatchKeyGuard no_views_{c10::DispatchKey::ADInplaceOrView};
  const fake::ClassDispatchScope dispatch_;
};

/// What a torch call has given that came to a class, as a tensor of that class: PyTorch's factories (zeros_like) give a
/// copy of what the class has given, which they ask it for.
Ref with_class(Capture& capture, Ref result);

/// A call of torch with such tensors among its arguments. Where nothing needs gradients, it runs below autograd; a side
/// exit, where they can't be captured.
class ClassCall {
 public:
  ClassCall(Capture& capture, std::span<PyObject* const> args);

 private:
  std::optional<at::AutoDispatchBelowADInplaceOrView> below_;
  std::optional<AboveClasses> above_;
};

}  // namespace magneto::capture
