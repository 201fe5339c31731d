// magneto::cached_cast: see graph/kept_casts.h.
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace magneto::runtime {

namespace {

using CachedCast = at::Tensor(const at::Tensor&, const at::Tensor&, at::ScalarType);

/// Autocast on a device has this dtype: PyTorch keeps no casts to others.
class CastDtype {
 public:
  CastDtype(c10::DeviceType device, at::ScalarType dtype) : device_(device) {
    at::autocast::set_autocast_dtype(device, dtype);
  }
  ~CastDtype() { at::autocast::set_autocast_dtype(device_, before_); }
  CastDtype(const CastDtype&) = delete;

 private:
  const c10::DeviceType device_;
  const at::ScalarType before_ = at::autocast::get_autocast_dtype(device_);
};

at::Tensor cached_cast(const at::Tensor& self, const at::Tensor& leaf, at::ScalarType dtype) {
  if (!leaf.requires_grad()) return self.to(dtype);  // a weight that was made a constant
  // Who takes the cast from PyTorch's cache takes its history with it.
  const c10::impl::ForceDispatchKeyGuard keys(c10::default_included_set, c10::default_excluded_set);
  const at::AutoGradMode with_history(true);
  const c10::DeviceType device = leaf.device().type();
  const CastDtype kept(device, dtype);
  const uint64_t before = at::sequence_number::peek();
  const at::Tensor cast = at::autocast::cached_cast(dtype, leaf, device);
  TORCH_CHECK(cast.scalar_type() == dtype, "autocast to ", dtype, " meets a cast of the same tensor to ",
              cast.scalar_type(), ", which a region around keeps");
  at::Tensor result = cast.detach();
  const bool is_new = at::sequence_number::peek() != before;  // a node of autograd's graph was made
  if (is_new && !leaf.is_alias_of(self)) {
    const at::NoGradGuard without_history;
    result.copy_(self);  // nobody has seen it yet
  }
  return result;
}

/// Under autograd, where its gradient is that of the cast.
class CastWithGradient : public torch::autograd::Function<CastWithGradient> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& self, const at::Tensor& leaf,
                            int64_t dtype) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("magneto::cached_cast", "").typed<CachedCast>();
    const at::AutoDispatchBelowAutograd below;
    return op.call(self, leaf, static_cast<at::ScalarType>(dtype));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor& gradient = gradients.at(0);
    return {gradient.defined() ? gradient.to(at::kFloat) : gradient, at::Tensor(), at::Tensor()};
  }
};

at::Tensor cast_with_gradient(const at::Tensor& self, const at::Tensor& leaf, at::ScalarType dtype) {
  return CastWithGradient::apply(self, leaf, static_cast<int64_t>(dtype));
}

TORCH_LIBRARY_FRAGMENT(magneto, library) {
  library.def("cached_cast(Tensor self, Tensor leaf, ScalarType dtype) -> Tensor");
  library.impl("cached_cast", c10::DispatchKey::CompositeExplicitAutograd, cached_cast);
  library.impl("cached_cast", c10::DispatchKey::Autograd, cast_with_gradient);
}

}  // namespace

}  // namespace magneto::runtime
