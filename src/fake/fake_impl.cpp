#include "fake/fake_impl.h"

#include <atomic>

namespace magneto::fake {

void SessionState::refuse(Refusal::Kind kind, std::string op, std::string message) {
  if (!refusal) refusal = Refusal{kind, std::move(op), std::move(message)};
}

FakeImpl::FakeImpl(std::shared_ptr<SessionState> state, c10::Storage storage, c10::DispatchKeySet keys,
                   caffe2::TypeMeta dtype)
    : TensorImpl(std::move(storage), keys, dtype), state_(std::move(state)) {
  count(1);
}

FakeImpl::FakeImpl(ImplType view, std::shared_ptr<SessionState> state, c10::Storage storage, c10::DispatchKeySet keys,
                   caffe2::TypeMeta dtype)
    : TensorImpl(view, std::move(storage), keys, dtype), state_(std::move(state)) {
  count(1);
}

FakeImpl::~FakeImpl() {
  if (counted_) count(-1);
}

void FakeImpl::release_resources() {
  // Called instead of the destructor when weak references remain.
  if (counted_) count(-1);
  counted_ = false;
  identity_.reset();
  known_.reset();
  TensorImpl::release_resources();
}

void FakeImpl::know(at::Tensor value, std::vector<graph::ValueId> from) {
  known_ = std::move(value);
  known_from_ = std::move(from);
  known_at_ = state_->writes[storage_.unsafeGetStorageImpl()];
}

const at::Tensor* FakeImpl::known() const {
  if (!known_.defined() || !state_->graph) return nullptr;
  return state_->writes[storage_.unsafeGetStorageImpl()] == known_at_ ? &known_ : nullptr;
}

void FakeImpl::count(int64_t change) {
  std::atomic_ref<int64_t>(state_->alive).fetch_add(change, std::memory_order_relaxed);
}

c10::Storage FakeImpl::make_storage(size_t nbytes, c10::Device device) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                       c10::DataPtr(nullptr, device), nullptr, /*resizable=*/false);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kDataAccess);
  return c10::Storage(std::move(storage));
}

template <typename Version>
c10::intrusive_ptr<c10::TensorImpl> FakeImpl::copy_with(Version&& version_counter,
                                                        bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<FakeImpl>(VIEW, state_, c10::Storage(unsafe_storage()), key_set(), dtype());
  copy_tensor_metadata(this, copy.get(), std::forward<Version>(version_counter), allow_tensor_metadata_change);
  copy->refresh_numel();
  copy->refresh_contiguous();
  copy->identity_ = identity_;
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> FakeImpl::shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                                      bool allow_tensor_metadata_change) const {
  return copy_with(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> FakeImpl::shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                                      bool allow_tensor_metadata_change) const {
  return copy_with(std::move(version_counter), allow_tensor_metadata_change);
}

void FakeImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& source) {
  // `x.data = y` gives a tensor other storage. No operator does that, so no graph can repeat it.
  static constexpr const char* kMessage = "assigning to the `data` of a tensor can't be captured";
  state_->refuse(Refusal::Kind::Unsupported, "aten.set_data.default", kMessage);
  C10_THROW_ERROR(Error, kMessage);
}

const at::Tensor* known_value(const at::Tensor& tensor) {
  FakeImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr;
  const at::Tensor* known = fake ? fake->known() : nullptr;
  if (known) fake->state().read_inputs.insert(fake->known_from().begin(), fake->known_from().end());
  return known;
}

bool is_fake(const at::Tensor& tensor) { return tensor.defined() && as_fake(tensor) != nullptr; }

}  // namespace magneto::fake
