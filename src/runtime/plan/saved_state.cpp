#include "runtime/plan/saved_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <c10/core/InferenceMode.h>

#include <mutex>

namespace magneto::runtime {

SavedState::SavedState(const graph::Undo& undo, const at::Tensor* const* inputs, bool tensors) {
  if (tensors) {
    const at::NoGradGuard no_grad;
    for (const graph::Undo::Written& written : undo.written) {
      const at::Tensor& tensor = *inputs[written.input];
      c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
      Kept kept{.tensor = tensor, .geometry = impl.shallow_copy_and_detach(c10::VariableVersion(0), true)};
      if (written.contents) kept.contents = tensor.clone();
      if (!tensor.is_inference()) kept.version = impl.version_counter().current_version();
      if (const auto* meta = torch::autograd::impl::get_autograd_meta(tensor)) {
        kept.history = meta->grad_fn_;
        kept.output_number = meta->output_nr_;
        kept.requires_grad = meta->requires_grad_;
      }
      tensors_.push_back(std::move(kept));
    }
  }
  for (at::Generator generator : undo.generators) {
    const std::scoped_lock lock(generator.mutex());
    generators_.emplace_back(generator, generator.clone());
  }
}

namespace {

/// An expanded tensor has one element for many, and can't be written as a whole.
void restore_contents(at::Tensor tensor, at::Tensor contents) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) != 0 || tensor.size(dim) < 2) continue;
    tensor = tensor.narrow(dim, 0, 1);
    contents = contents.narrow(dim, 0, 1);
  }
  tensor.copy_(contents);
}

}  // namespace

std::vector<at::Tensor> SavedState::contents() const {
  std::vector<at::Tensor> contents;
  for (const Kept& kept : tensors_) contents.push_back(kept.contents);
  return contents;
}

void SavedState::restore() {
  for (const Kept& kept : tensors_) {
    const at::Tensor& tensor = kept.tensor;
    c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    const c10::InferenceMode mode(tensor.is_inference());
    const at::NoGradGuard no_grad;  // behind the mode, which sets what gradients do, too
    const bool moved = impl.has_storage() && !impl.storage().is_alias_of(kept.geometry->storage());
    if (moved || impl.sizes() != kept.geometry->sizes() || impl.strides() != kept.geometry->strides() ||
        impl.storage_offset() != kept.geometry->storage_offset()) {
      impl.shallow_copy_from(kept.geometry);
    }
    if (kept.contents.defined()) restore_contents(tensor, kept.contents);
    // What was written under autograd has got another history. (A view's is its base's.)
    auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
    if (!meta || meta->is_view_) continue;
    meta->grad_fn_ = kept.history;
    meta->output_nr_ = kept.output_number;
    meta->requires_grad_ = kept.requires_grad;
  }
  for (const Kept& kept : tensors_) {
    if (kept.tensor.is_inference()) continue;
    c10::VariableVersion version = kept.tensor.unsafeGetTensorImpl()->version_counter();
    version.set_version(kept.version);
  }
  for (auto& [generator, copy] : generators_) {
    const std::scoped_lock lock(generator.mutex());
    auto* impl = dynamic_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
    if (!impl) {
      generator.set_state(copy.get_state());
      continue;
    }
    // Without memory for a tensor: there may be none left.
    auto& kept = static_cast<at::CPUGeneratorImpl&>(*copy.unsafeGetGeneratorImpl());
    impl->set_engine(kept.engine());
    impl->set_next_float_normal_sample(kept.next_float_normal_sample());
    impl->set_next_double_normal_sample(kept.next_double_normal_sample());
  }
}

}  // namespace magneto::runtime
