#include "fake/fake_impl.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/Contiguity.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>

#include "fake/dispatch_key.h"
#include "fake/size_node.h"
#include "fake/symbolic.h"

namespace magneto::fake {

void SessionState::refuse(Refusal::Kind kind, std::string op, std::string message) {
  if (!refusal) refusal = Refusal{kind, std::move(op), std::move(message)};
}

int64_t SessionState::number_of(shapes::Expr expr) {
  if (hinting) return sizes.example(expr);
  if (const std::optional<int64_t> number = sizes.specialise(expr)) return *number;
  const std::string message = "it needs the number " + shapes::text(expr) + ", which is data-dependent" +
                              (origins ? " (" + origins(expr) + ")" : "");
  refuse(Refusal::Kind::DataDependent, "", message);
  C10_THROW_ERROR(Error, message);
}

void SessionState::fix_float(const at::Tensor& holder) {
  if (hinting || (assume_float && assume_float(holder))) return;
  static const std::string message = "it needs a data-dependent float";
  refuse(Refusal::Kind::DataDependent, "", message);
  C10_THROW_ERROR(Error, message);
}

bool SessionState::answer(const shapes::Relation& question) {
  if (hinting) return shapes::holds(question.kind, sizes.example(question.difference));
  if (const std::optional<bool> answer = sizes.evaluate(question)) return *answer;
  const bool answer = shapes::holds(question.kind, sizes.example(question.difference));
  checks.push_back(answer ? question : !question);
  sizes.assume(checks.back());
  return answer;
}

void SessionState::leave_unasked(std::function<bool()> ask) {
  if (graph) purpose.unasked.push_back({graph->aten_nodes.size(), std::move(ask)});
}

bool SessionState::answer(SizeQuestion question, shapes::Expr a, shapes::Expr b) {
  if (hinting) return answer(question(a, b));
  auto& given = answers[question];
  const std::pair asked(a.identity(), b.identity());
  const auto known = given.find(asked);
  if (known != given.end()) return known->second;
  return given[asked] = answer(question(a, b));
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
  if (!state_->graph) return nullptr;
  if (!symbolic_ && numel_ == 0 && device_opt_ == c10::Device(c10::kCPU)) {
    // Nothing is in it, whatever is written.
    if (!known_.defined()) {
      const BelowFake guard;
      const c10::InferenceMode no_inference(false);
      known_ = at::empty_strided(sizes_default(), strides_default(), c10::typeMetaToScalarType(dtype()));
    }
    return &known_;
  }
  if (!known_.defined()) return nullptr;
  return state_->writes[storage_.unsafeGetStorageImpl()] == known_at_ ? &known_ : nullptr;
}

void FakeImpl::count(int64_t change) {
  std::atomic_ref<int64_t>(state_->alive).fetch_add(change, std::memory_order_relaxed);
}

// -- dynamic sizes -------------------------------------------------------------------------------

c10::SymInt FakeImpl::Symbolic::numel() const {
  c10::SymInt numel = 1;
  for (const c10::SymInt& size : sizes) numel *= size;
  return numel;
}

void FakeImpl::set_symbolic(std::shared_ptr<const Symbolic> symbolic) {
  if (symbolic_) former_.push_back(std::move(symbolic_));
  symbolic_ = std::move(symbolic);
  set_custom_sizes_strides(symbolic_ ? SizesStridesPolicy::CustomSizes : SizesStridesPolicy::Default);
}

void FakeImpl::specialise() const {
  if (state_->hinting || !symbolic_) return;
  for (const c10::SymInt& size : symbolic_->sizes) state_->number_of(expr_of(size));
  for (const c10::SymInt& stride : symbolic_->strides) state_->number_of(expr_of(stride));
  state_->number_of(expr_of(symbolic_->offset));
}

bool FakeImpl::fix_sizes() {
  if (!symbolic_) return false;
  specialise();
  set_symbolic(nullptr);
  return true;
}

c10::IntArrayRef FakeImpl::sizes_custom() const {
  specialise();
  return sizes_and_strides_.sizes_arrayref();
}

int64_t FakeImpl::size_custom(int64_t d) const {
  d = c10::maybe_wrap_dim(d, dim());
  if (!state_->hinting && symbolic_) state_->number_of(expr_of(symbolic_->sizes[d]));
  return sizes_and_strides_.size_at(d);
}

c10::IntArrayRef FakeImpl::strides_custom() const {
  specialise();
  return sizes_and_strides_.strides_arrayref();
}

int64_t FakeImpl::numel_custom() const {
  specialise();
  return numel_;
}

int64_t FakeImpl::storage_offset_custom() const {
  specialise();
  return storage_offset_;
}

c10::SymIntArrayRef FakeImpl::sym_sizes_custom() const { return symbolic_->sizes; }
c10::SymIntArrayRef FakeImpl::sym_strides_custom() const { return symbolic_->strides; }
c10::SymInt FakeImpl::sym_numel_custom() const { return symbolic_->numel(); }
c10::SymInt FakeImpl::sym_storage_offset_custom() const { return symbolic_->offset; }

bool FakeImpl::has_contiguous_strides() const {
  const SymSizes contiguous = contiguous_strides(*state_, symbolic_->sizes);
  return std::ranges::equal(contiguous, symbolic_->strides, [&](const c10::SymInt& a, const c10::SymInt& b) {
    return state_->sizes.simplified(expr_of(a)) == state_->sizes.simplified(expr_of(b));
  });
}

namespace {

/// Contiguous, whatever the sizes are: what the stride of a dimension of size 1 is says nothing.
bool is_contiguous_in_any_size(SessionState& state, const FakeImpl::Symbolic& symbolic) {
  c10::SymInt next = 1;
  for (size_t dim = symbolic.sizes.size(); dim-- > 0;) {
    const shapes::Expr size = state.sizes.simplified(expr_of(symbolic.sizes[dim]));
    if (size.is_constant() && size.number() == 1) continue;
    if (state.sizes.simplified(expr_of(symbolic.strides[dim])) != state.sizes.simplified(expr_of(next))) return false;
    next = next * symbolic.sizes[dim];
  }
  return true;
}

}  // namespace

c10::SymBool FakeImpl::sym_is_contiguous_custom(at::MemoryFormat format) const {
  if (state_->hinting) return is_contiguous_default(format);
  if (format == at::MemoryFormat::Contiguous &&
      (has_contiguous_strides() || is_contiguous_in_any_size(*state_, *symbolic_))) {
    return true;
  }
  const auto ask = [format, symbolic = symbolic_] {
    const c10::SymIntArrayRef sizes = symbolic->sizes, strides = symbolic->strides;
    switch (format) {
      case at::MemoryFormat::ChannelsLast:
        return c10::_compute_channels_last_contiguous_2d<c10::SymInt>(sizes, strides);
      case at::MemoryFormat::ChannelsLast3d:
        return c10::_compute_channels_last_contiguous_3d<c10::SymInt>(sizes, strides);
      default:
        return c10::_compute_contiguous<c10::SymInt>(sizes, strides, symbolic->numel());
    }
  };
  if (!state_->in_general || !state_->purpose.exports) return ask();
  return asked_later(state_, is_contiguous_default(format), ask);
}

c10::SymBool FakeImpl::sym_is_non_overlapping_and_dense_custom() const {
  if (state_->hinting) return is_non_overlapping_and_dense_;
  return is_contiguous(at::MemoryFormat::Contiguous) ||
         c10::_compute_non_overlapping_and_dense<c10::SymInt>(symbolic_->sizes, symbolic_->strides);
}

bool FakeImpl::is_strides_like_custom(at::MemoryFormat format) const {
  if (state_->hinting) return is_strides_like_default(format);
  if (format == at::MemoryFormat::ChannelsLast) {
    return c10::is_channels_last_strides_2d<c10::SymInt>(symbolic_->sizes, symbolic_->strides);
  }
  return format == at::MemoryFormat::ChannelsLast3d &&
         c10::is_channels_last_strides_3d<c10::SymInt>(symbolic_->sizes, symbolic_->strides);
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
  copy->set_symbolic(symbolic_);
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

void FakeImpl::take(const FakeImpl& source) {
  copy_tensor_metadata(&source, this, version_counter(), allow_tensor_metadata_change());
  refresh_numel();
  refresh_contiguous();
  identity_ = source.identity_;
  set_symbolic(source.symbolic_);
  known_ = source.known_;
  known_from_ = source.known_from_;
  known_at_ = source.known_at_;
}

const at::Tensor* known_value(const at::Tensor& tensor) {
  FakeImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr;
  const at::Tensor* known = fake ? fake->known() : nullptr;
  if (known) fake->state().read_inputs.insert(fake->known_from().begin(), fake->known_from().end());
  return known;
}

bool is_fake(const at::Tensor& tensor) { return tensor.defined() && as_fake(tensor) != nullptr; }

}  // namespace magneto::fake
