// Operators on tensors whose class says itself what they come to (__torch_dispatch__).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>

namespace c10 {
class OperatorHandle;
}

namespace magneto::fake {

/// Puts the operator's results in the place of its arguments.
using ClassDispatch = std::function<void(const c10::OperatorHandle& op, torch::jit::Stack* stack)>;

inline bool has_class_dispatch(const at::Tensor& tensor) { return tensor.key_set().has(c10::DispatchKey::Python); }

/// A tensor of torch.nested with layout torch.jagged, or its stand-in.
inline bool is_jagged(const at::Tensor& tensor) { return has_class_dispatch(tensor) && tensor.is_nested(); }

/// A history from before the capture: it exists, and nobody may run it.
void give_earlier_history(const at::Tensor& stand_in);

/// While one lives, this thread's operators on such tensors are handed to the innermost one, not to PyTorch, which
/// would run what the class says.
class ClassDispatchScope {
 public:
  /// `below`: of autograd, as in a __torch_dispatch__, where PyTorch does not take composite operators apart. `every`:
  /// operators on other tensors, or none, too, as under a mode.
  ClassDispatchScope(ClassDispatch dispatch, bool below, bool every);
  ~ClassDispatchScope();
  ClassDispatchScope(const ClassDispatchScope&) = delete;

  const ClassDispatch dispatch;
  const bool below, every;

 private:
  ClassDispatchScope* const outer_;
  c10::impl::ExcludeDispatchKeyGuard past_torch_;
};

}  // namespace magneto::fake
