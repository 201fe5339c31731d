#include "fake/meta_kernel.h"

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "fake/dispatch_key.h"
#include "python/ref.h"

namespace magneto::fake {

namespace {

constexpr c10::DispatchKeySet kKeysAboveBackends =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
    c10::DispatchKeySet({kFakeKey, kFirstKey, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});

/// Operators that are tried with zeros on the CPU whatever their meta kernel is made of, or never.
struct TriedRow {
  enum Reason {
    /// The meta kernel assumes a GPU, where the layout of results differs. Zeros are good arguments, and the layout
    /// depends on no data.
    MetaAssumesGpu,
    /// The kernel goes where numbers among its arguments say, unchecked: zeros (rows are counted from one, and lengths
    /// must fill the data) are no arguments for it.
    TrustsNumbers
  };
  std::string_view op;
  Reason reason;
};
constexpr TriedRow kTried[] = {
    {"aten::_linalg_svd", TriedRow::MetaAssumesGpu},   {"aten::linalg_eig", TriedRow::MetaAssumesGpu},
    {"aten::_fft_r2c", TriedRow::MetaAssumesGpu},      {"aten::_fft_c2r", TriedRow::MetaAssumesGpu},
    {"aten::_fft_c2c", TriedRow::MetaAssumesGpu},      {"aten::linalg_lu_solve", TriedRow::TrustsNumbers},
    {"aten::lu_unpack", TriedRow::TrustsNumbers},      {"aten::linalg_ldl_solve", TriedRow::TrustsNumbers},
    {"aten::segment_reduce", TriedRow::TrustsNumbers}, {"aten::_segment_reduce_backward", TriedRow::TrustsNumbers},
    {"aten::_ctc_loss", TriedRow::TrustsNumbers},      {"aten::_ctc_loss_backward", TriedRow::TrustsNumbers},
};

/// Most elements of an argument that are computed on: for the sake of a layout, and to do without Python.
constexpr int64_t kMostZeros = int64_t{1} << 22, kMostZerosForSpeed = int64_t{1} << 18;

/// PyTorch's meta kernels in Python take a hundred times as long as native ones, and many of them load parts of
/// PyTorch's compiler, which takes up to seconds. Kernels that are made of other operators come to them.
bool meta_is_python(const c10::OperatorHandle& op) {
  // What a user's operator does besides is not to be done while capturing.
  if (op.operator_name().getNamespace() != "aten") return false;
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return true;
  const auto kernel = op.getComputedKernelForDispatchKey(c10::DispatchKey::Meta);
  return kernel.debug().find("_meta_registrations") != std::string::npos;
}

bool is_tried(const c10::OperatorHandle& op, TriedRow::Reason reason) {
  const auto* const row = std::ranges::find(kTried, op.operator_name().name, &TriedRow::op);
  return row != std::end(kTried) && row->reason == reason;
}

/// The CPU's own kernel may be called with zeros in place of the arguments. Never for random numbers, whose stream
/// would move.
bool may_try(const c10::OperatorHandle& op, std::span<const c10::IValue> args, int64_t most) {
  if (op.operator_name().getNamespace() != "aten" || op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  if (is_tried(op, TriedRow::TrustsNumbers)) return false;
  const auto small = [&](const at::Tensor& tensor) {
    return !tensor.defined() || (tensor.is_cpu() && tensor.numel() <= most);
  };
  return std::ranges::none_of(args, [&](const c10::IValue& arg) {
    return (arg.isTensor() && !small(arg.toTensor())) ||
           (arg.isTensorList() && !std::ranges::all_of(arg.toTensorVector(), small)) ||
           (arg.isDevice() && !arg.toDevice().is_cpu());
  });
}

/// The device of what an operator is tried with. The CPU: its own kernel there is called with zeros, and says what
/// eager would.
c10::Device stand_in_of(const c10::OperatorHandle& op, std::span<const c10::IValue> args) {
  const bool assumes_gpu = is_tried(op, TriedRow::MetaAssumesGpu);
  const bool try_zeros =
      (assumes_gpu || meta_is_python(op)) && may_try(op, args, assumes_gpu ? kMostZeros : kMostZerosForSpeed);
  return c10::Device(try_zeros ? c10::kCPU : c10::kMeta);
}

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

/// The message of a C++ exception, which may stand for the Python error that is set; clears that.
std::string first_line(const std::exception& error) {
  const pybind11::gil_scoped_acquire gil;  // operators called from Python run without it
  std::string text = error.what();
  if (PyErr_Occurred()) {
    Ref raised = take_error();
    Ref message = Ref::steal(PyObject_Str(raised.get()));
    text = std::string(Py_TYPE(raised.get())->tp_name) + ": " + (message ? PyUnicode_AsUTF8(message.get()) : "");
    PyErr_Clear();
  }
  return text.substr(0, text.find('\n'));
}

class MetaCall {
 public:
  MetaCall(Session& session, const c10::OperatorHandle& op, std::span<const c10::IValue> args, c10::Device stand_in)
      : session_(session), op_(op), stand_in_(stand_in) {
    for (size_t i = 0; i < args.size(); ++i) {
      stack_.push_back(is_numbers(i) && args[i].isTensor() ? c10::IValue(numbers(args[i].toTensor()))
                                                           : to_meta(args[i]));
    }
    find_device(args);
  }

  /// Throws what the kernel throws.
  void call() {
    MetaScope scope;
    op_.callBoxed(&stack_);
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
    c10::DispatchKeySet keys(stand_in_.is_meta() ? c10::DispatchKey::Meta : c10::DispatchKey::CPU);
    keys = keys | (tensor.key_set() & c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}));
    auto impl = c10::make_intrusive<c10::TensorImpl>(meta_storage(tensor.storage()), keys, tensor.dtype());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    tensors_.emplace_back(tensor, at::Tensor(std::move(impl)));
    return tensors_.back().second;
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
    if (value.isDevice()) return stand_in_;
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
  c10::Device stand_in_;
  torch::jit::Stack stack_;
  c10::Device device_ = c10::Device(c10::kCPU);
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 4> tensors_;       // fake, meta
  c10::SmallVector<std::pair<c10::Storage, c10::Storage>, 4> storages_;  // fake, meta
};

/// What the kernel for the CPU gives for zeros. Nothing: it refuses them, which may be good arguments otherwise.
std::optional<std::vector<c10::IValue>> try_zeros(Session& session, const c10::OperatorHandle& op,
                                                  std::span<const c10::IValue> args) {
  try {
    return MetaCall(session, op, args, c10::Device(c10::kCPU)).run();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

}  // namespace

void throw_as_eager(Session& session, const c10::OperatorHandle& op, std::span<const c10::IValue> args) {
  if (!session.refused() && may_try(op, args, kMostZeros)) {
    try {
      MetaCall(session, op, args, c10::Device(c10::kCPU)).call();
    } catch (const c10::Error&) {
      const pybind11::gil_scoped_acquire gil;
      PyErr_Clear();  // of the meta kernel, where that is in Python
      throw;
    }
  }
  throw;
}

std::vector<c10::IValue> run_meta_kernel(Session& session, const c10::OperatorHandle& op,
                                         std::span<const c10::IValue> args) {
  if (stand_in_of(op, args).is_cpu()) {
    if (auto results = try_zeros(session, op, args)) return *std::move(results);
  }
  const auto refuse = [&](Refusal::Kind kind, const std::string& message) { session.impl().refuse(kind, op, message); };
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
    refuse(Refusal::Kind::Unsupported, "it has no shape rule and no kernel for the meta device");
  }
  try {
    return MetaCall(session, op, args, c10::Device(c10::kMeta)).run();
  } catch (const c10::NotImplementedError& error) {
    refuse(Refusal::Kind::Unsupported, error.what_without_backtrace());
  } catch (const std::exception& error) {
    const std::string_view message = error.what();
    // How a meta tensor answers to .item().
    if (message.find("on meta tensors") != std::string_view::npos) {
      refuse(Refusal::Kind::DataDependent, "it needs the data of a tensor, which is not known during a capture");
    }
    // An error that speaks of the device is about the stand-in: the real kernel will tell.
    if (message.find("meta") != std::string_view::npos) {
      refuse(Refusal::Kind::Unsupported, "its kernel refuses the meta device: " + first_line(error));
    }
    // What the fake kernel of a user's operator raises may be no business of the program; the real kernel will tell.
    if (op.operator_name().getNamespace() == "aten") throw_as_eager(session, op, args);
    refuse(Refusal::Kind::Unsupported, "its fake kernel raised " + first_line(error));
  }
  return {};  // refusing throws
}

}  // namespace magneto::fake
