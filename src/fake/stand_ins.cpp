#include "fake/stand_ins.h"

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "fake/dispatch_key.h"

namespace magneto::fake {

namespace {

constexpr c10::DispatchKeySet kKeysAboveBackends =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
    c10::DispatchKeySet({kFakeKey, kFirstKey, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});

/// The state in which a meta kernel runs: straight to the backend, nothing recorded, and Python meta kernels out of
/// reach of the user's torch function modes.
class MetaScope {
 public:
  MetaScope()
      : keys_(c10::impl::tls_local_dispatch_key_set().included_ - c10::DispatchKeySet({kFakeKey, kFirstKey}),
              c10::impl::tls_local_dispatch_key_set().excluded_ | kKeysAboveBackends),
        torch_function_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~MetaScope() { at::impl::PythonTorchFunctionTLS::set_disabled_state(torch_function_); }
  MetaScope(const MetaScope&) = delete;

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  at::impl::TorchFunctionDisabledState torch_function_;
};

/// A session of its own while another one waits: what its fakes are used for leaves no trace in that.
class Scratch {
 public:
  Scratch() : outer_(exchange_current(nullptr)), included_(c10::impl::tls_is_dispatch_key_included(kFakeKey)) {
    session_.emplace(graph_);
  }
  ~Scratch() {
    session_.reset();
    exchange_current(outer_);
    include_keys(included_);
  }
  Scratch(const Scratch&) = delete;

  Session& session() { return *session_; }

 private:
  Session* const outer_;
  const bool included_;
  graph::Graph graph_;
  std::optional<Session> session_;
};

/// The state in which a kernel that is made of operators runs on fakes: these go straight to our kernel.
class PartsScope {
 public:
  PartsScope()
      : keys_(c10::impl::tls_local_dispatch_key_set().included_ - c10::DispatchKeySet(kFirstKey),
              c10::impl::tls_local_dispatch_key_set().excluded_ | (kKeysAboveBackends - c10::DispatchKeySet(kFakeKey))),
        torch_function_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~PartsScope() { at::impl::PythonTorchFunctionTLS::set_disabled_state(torch_function_); }
  PartsScope(const PartsScope&) = delete;

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  at::impl::TorchFunctionDisabledState torch_function_;
};

class StandInCall {
 public:
  StandInCall(Session& session, const c10::OperatorHandle& op, std::span<const c10::IValue> args, StandIn stand_in)
      : session_(session),
        op_(op),
        kind_(stand_in),
        stand_in_(stand_in == StandIn::Meta || stand_in == StandIn::Structured ? c10::kMeta : c10::kCPU) {
    if (made_of_parts()) {
      scratch_.emplace();
      scratch_->session().impl().trusts_outputs = kind_ == StandIn::Structured;
      // Kernels ask whether there is a storage. Who reads it is thrown at all the same.
      scratch_->session().set_engine_runs(true);
    }
    for (size_t i = 0; i < args.size(); ++i) {
      stack_.push_back(is_numbers(i) && args[i].isTensor() ? c10::IValue(numbers(args[i].toTensor()))
                                                           : to_meta(args[i]));
    }
    find_device(args);
  }

  /// Throws what the kernel throws.
  void call() {
    if (!made_of_parts()) {
      MetaScope scope;
      return op_.callBoxed(&stack_);
    }
    PartsScope scope;
    const auto key = c10::DispatchKey::CompositeExplicitAutograd;
    const bool plain = kind_ == StandIn::Parts && op_.hasKernelForDispatchKey(key);
    op_.callBoxedForDispatchKey(plain ? key : c10::DispatchKey::CompositeExplicitAutogradNonFunctional, stack_);
    TORCH_CHECK(!scratch_->session().refused(), "a part of it can't be captured");
  }

  std::vector<c10::IValue> run() {
    call();
    for (auto& [fake, meta] : tensors_) follow_metadata(fake, meta);
    std::vector<c10::IValue> results;
    results.reserve(stack_.size());
    for (const c10::IValue& result : stack_) results.push_back(from_meta(result));
    return results;
  }

 private:
  // -- there

  /// A tensor on the CPU that a _foreach operator takes as a list of numbers, and reads.
  bool is_numbers(size_t i) const {
    return op_.schema().arguments()[i].name() == "scalars" && op_.operator_name().name.starts_with("aten::_foreach_");
  }

  /// No result's metadata depends on the numbers.
  static at::Tensor numbers(const at::Tensor& fake) {
    MetaScope scope;
    return as_fake(fake) ? at::ones(fake.sizes(), at::TensorOptions(fake.scalar_type())) : fake;
  }

  at::Tensor to_meta(const at::Tensor& tensor) {
    // Numbers wrapped as tensors go as they are: Python meta kernels get them as Python numbers.
    if (!tensor.defined() || !as_fake(tensor)) return tensor;
    for (auto& [fake, meta] : tensors_) {
      if (fake.is_same(tensor)) return meta;
    }
    if (made_of_parts()) {
      tensors_.emplace_back(tensor, to_scratch(tensor));
      return tensors_.back().second;
    }
    c10::DispatchKeySet keys(stand_in_.is_meta() ? c10::DispatchKey::Meta : c10::DispatchKey::CPU);
    keys = keys | (tensor.key_set() & c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}));
    auto impl = c10::make_intrusive<c10::TensorImpl>(meta_storage(tensor.storage()), keys, tensor.dtype());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    tensors_.emplace_back(tensor, at::Tensor(std::move(impl)));
    return tensors_.back().second;
  }

  bool made_of_parts() const { return kind_ == StandIn::Parts || kind_ == StandIn::Structured; }

  at::Tensor to_scratch(const at::Tensor& tensor) {
    Session::Impl& impl = scratch_->session().impl();
    const c10::Storage& storage = tensor.storage();
    at::Tensor* base = nullptr;
    for (auto& [fake, meta] : bases_) {
      if (fake.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) base = &meta;
    }
    if (!base) {
      const c10::Device device = stand_in_.is_meta() ? stand_in_ : tensor.device();
      const auto bytes = static_cast<int64_t>(storage.nbytes());
      base = &bases_.emplace_back(storage, impl.empty({bytes}, {1}, c10::kByte, device)).second;
      storages_.emplace_back(storage, base->storage());
    }
    at::Tensor made = impl.view(*base, tensor.sizes(), tensor.strides(), tensor.storage_offset(), tensor.scalar_type());
    if (tensor.is_conj()) made.unsafeGetTensorImpl()->_set_conj(true);
    if (tensor.is_neg()) made.unsafeGetTensorImpl()->_set_neg(true);
    impl.add_result(*as_fake(made), -1);
    return made;
  }

  c10::Storage meta_storage(const c10::Storage& storage) {
    for (auto& [fake, meta] : storages_) {
      if (fake.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return meta;
    }
    c10::Storage meta(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                            c10::GetAllocator(stand_in_.type()), /*resizable=*/true));
    if (!stand_in_.is_meta() && storage.nbytes() > 0) std::memset(meta.mutable_data(), 0, storage.nbytes());
    storages_.emplace_back(storage, meta);
    return meta;
  }

  c10::IValue to_meta(const c10::IValue& value) {
    if (value.isTensor()) return to_meta(value.toTensor());
    if (value.isDevice()) return kind_ == StandIn::Parts ? value : c10::IValue(stand_in_);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) list.push_back(to_meta(item));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& item : value.toListRef()) {
        list.push_back(item.isNone() ? std::nullopt : std::optional(to_meta(item.toTensor())));
      }
      return list;
    }
    return value;
  }

  /// Where new results live: as the call says, else where its tensors live (numbers in 0-dimensional tensors on the CPU
  /// may be mixed with tensors elsewhere), else on the CPU. The meta kernel is told so by a meta device.
  void find_device(std::span<const c10::IValue> args) {
    const auto& schema = op_.schema().arguments();
    bool said = false;
    for (size_t i = 0; i < args.size(); ++i) {
      const c10::Type& type = *schema[i].type();
      const bool takes_device = schema[i].name() == "device" && (type.kind() == c10::TypeKind::DeviceObjType ||
                                                                 type.kind() == c10::TypeKind::OptionalType);
      if (!takes_device) continue;
      if (args[i].isDevice()) {
        device_ = args[i].toDevice();
        if (!device_.has_index() && !device_.is_cpu())
          device_ = c10::impl::VirtualGuardImpl(device_.type()).getDevice();
        said = true;
      } else if (tensors_.empty()) {
        stack_[i] = c10::Device(c10::kMeta);
      }
    }
    for (auto& [fake, meta] : tensors_) {
      if (said) break;
      device_ = fake.device();
      said = fake.dim() > 0 || !device_.is_cpu();
    }
  }

  // -- and back

  /// In-place operators may change sizes and strides, and the extent of the storage with them.
  void follow_metadata(const at::Tensor& tensor, const at::Tensor& meta) {
    if (tensor.sizes() == meta.sizes() && tensor.strides() == meta.strides() &&
        tensor.storage_offset() == meta.storage_offset()) {
      return;
    }
    session_.impl().change_metadata(*as_fake(tensor), meta.sizes(), meta.strides(), meta.storage_offset());
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    storage->set_nbytes(std::max(storage->nbytes(), meta.storage().nbytes()));
  }

  at::Tensor from_meta(const at::Tensor& result) {
    if (!result.defined()) return result;
    for (auto& [fake, meta] : tensors_) {
      if (!meta.is_same(result)) continue;
      // Its own kernel gives back what it was given, and the schema says otherwise: of that no graph knows.
      TORCH_CHECK(stand_in_.is_meta() || returns_arguments(), "an argument comes back");
      return fake;
    }
    at::Tensor fake = new_fake(result);
    c10::TensorImpl* impl = fake.unsafeGetTensorImpl();
    if (result.is_conj() != fake.is_conj()) impl->_set_conj(result.is_conj());
    if (result.is_neg() != fake.is_neg()) impl->_set_neg(result.is_neg());
    tensors_.emplace_back(fake, result);
    return fake;
  }

  at::Tensor new_fake(const at::Tensor& result) {
    for (auto& [storage, meta] : storages_) {
      if (meta.unsafeGetStorageImpl() != result.storage().unsafeGetStorageImpl()) continue;
      for (auto& [base, base_meta] : tensors_) {
        if (base.storage().unsafeGetStorageImpl() != storage.unsafeGetStorageImpl()) continue;
        return session_.impl().view(base, result.sizes(), result.strides(), result.storage_offset(),
                                    result.scalar_type());
      }
    }
    at::Tensor fake = session_.impl().empty(result.sizes(), result.strides(), result.scalar_type(),
                                            result.is_meta() ? device_ : result.device());
    c10::StorageImpl* made = fake.storage().unsafeGetStorageImpl();  // may be larger than what the tensor shows
    made->set_nbytes(std::max(made->nbytes(), result.storage().nbytes()));
    // Further results may share the new storage.
    storages_.emplace_back(fake.storage(), result.storage());
    if (result.storage_offset() != 0) fake.unsafeGetTensorImpl()->set_storage_offset(result.storage_offset());
    return fake;
  }

  bool returns_arguments() const {
    return std::ranges::any_of(op_.schema().returns(), [](const c10::Argument& result) { return result.alias_info(); });
  }

  c10::IValue from_meta(const c10::IValue& value) {
    if (value.isTensor()) return from_meta(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) list.push_back(from_meta(item));
      return list;
    }
    return value;
  }

  Session& session_;
  const c10::OperatorHandle& op_;
  const StandIn kind_;
  c10::Device stand_in_;
  std::optional<Scratch> scratch_;
  std::vector<std::pair<c10::Storage, at::Tensor>> bases_;  // of a fake, and a stand-in for all of it
  torch::jit::Stack stack_;
  c10::Device device_ = c10::Device(c10::kCPU);
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 4> tensors_;       // fake, meta
  c10::SmallVector<std::pair<c10::Storage, c10::Storage>, 4> storages_;  // fake, meta
};

}  // namespace

std::vector<c10::IValue> call_on_stand_ins(Session& session, const c10::OperatorHandle& op,
                                           std::span<const c10::IValue> args, StandIn stand_in) {
  return StandInCall(session, op, args, stand_in).run();
}

void check_on_stand_ins(Session& session, const c10::OperatorHandle& op, std::span<const c10::IValue> args,
                        StandIn stand_in) {
  StandInCall(session, op, args, stand_in).call();
}

}  // namespace magneto::fake
