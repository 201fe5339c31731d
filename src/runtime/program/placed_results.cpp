#include "runtime/program/placed_results.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/resize_ops.h>
#include <torch/library.h>

#include "fake/dispatch_key.h"

namespace magneto::runtime {
namespace {

/// Where the next result is to lie; null outside of `call_placed` and behind the first result.
thread_local const at::Tensor* place = nullptr;

class Placing {
 public:
  explicit Placing(const at::Tensor& out) : key_(fake::kFirstKey) { place = &out; }
  ~Placing() { place = nullptr; }
  Placing(const Placing&) = delete;

 private:
  const c10::impl::IncludeDispatchKeyGuard key_;
};

bool fits(const at::Tensor& made, c10::SymIntArrayRef sizes) {
  const auto known = c10::asIntArrayRefSlowOpt(sizes);
  return known && *known == place->sizes() && made.numel() == 0 && made.dtype() == place->dtype() &&
         made.device().is_cpu() && made.has_storage() && made.storage().nbytes() == 0;
}

const at::Tensor& resize_(c10::DispatchKeySet keys, const at::Tensor& self, c10::SymIntArrayRef sizes,
                          std::optional<at::MemoryFormat> format) {
  if (place && fits(self, sizes)) {
    c10::TensorImpl& made = *self.unsafeGetTensorImpl();
    made.set_storage_keep_dtype(place->storage());
    made.set_storage_offset(place->storage_offset());
    place = nullptr;
  }
  // Finds that there is memory enough.
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, fake::kFirstKey);
  return at::_ops::resize_::redispatch(keys & below, self, sizes, format);
}

/// For ever: the dispatcher outlives us.
torch::Library& placing_library() {
  static auto* library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "aten", fake::kFirstKey, __FILE__, __LINE__);
    made->impl("resize_", &resize_);
    return made;
  }();
  return *library;
}

}  // namespace

void call_placed(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers, at::Tensor& out) {
  placing_library();
  torch::jit::Stack stack;
  stack.reserve(step.arguments.size());
  for (const Argument& argument : step.arguments) {
    const bool constant = argument.kind == Argument::Kind::Constant;
    stack.push_back(constant ? argument.constant : c10::IValue(registers[argument.tensor]));
  }
  {
    const Placing placing(out);
    step.op.redispatchBoxed(keys, &stack);
  }
  const at::Tensor& result = stack[0].toTensor();
  const bool placed = result.const_data_ptr() == out.const_data_ptr();
  if (placed && result.strides() == out.strides()) return;
  out.copy_(placed ? result.clone() : result);
}

}  // namespace magneto::runtime
