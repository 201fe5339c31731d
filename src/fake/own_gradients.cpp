#include "fake/own_gradients.h"

#include "fake/class_dispatch.h"
#include "fake/fake_impl.h"

namespace magneto::fake {

bool has_own_gradient(c10::DispatchKeySet keys, const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return c10::isFloatingType(self.scalar_type()) && (!dtype || c10::isFloatingType(*dtype)) &&
         at::GradMode::is_enabled() && self.requires_grad() && as_fake(self) && !has_class_dispatch(self) &&
         !keys.has_any(c10::autocast_dispatch_keyset | kTransformKeys) && !self._fw_grad(/*level=*/0).defined();
}

}  // namespace magneto::fake
