#include "guards/tensor_check.h"

#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <ranges>
#include <sstream>
#include <stdexcept>

#include "guards/objects.h"
#include "guards/text.h"
#include "python/abi/paused_collector.h"

namespace magneto::guards {

namespace {

/// TensorImpl::autograd_meta() is a call; the member is private, and named in an explicit instantiation it may be used.
template <auto member>
struct OpenedMember {
  friend constexpr auto autograd_meta_member() { return member; }
};
constexpr auto autograd_meta_member();
template struct OpenedMember<&c10::TensorImpl::autograd_meta_>;

const torch::autograd::AutogradMeta* meta_of(const c10::TensorImpl& impl) {
  return static_cast<const torch::autograd::AutogradMeta*>((impl.*autograd_meta_member()).get());
}

/// Opens the predicate that says who answers for a tensor's sizes and strides.
struct Policy : c10::TensorImpl {
  /// Sizes and strides are the tensor's own numbers, not symbols and not another class's answer.
  static bool plain(const c10::TensorImpl& impl) {
    constexpr auto matches = &Policy::matches_policy;
    return !(impl.*matches)(SizesStridesPolicy::CustomStrides) && !impl.has_symbolic_sizes_strides();
  }
};

const at::Tensor& tensor_of(PyObject* object) { return THPVariable_Unpack(object); }

std::string list_text(c10::IntArrayRef values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

bool same_block(const int64_t* a, const int64_t* b, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

}  // namespace

bool is_tensor(PyObject* object) {
  return THPVariableClass && PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

TensorGuard read_tensor(PyObject* object) {
  if (!is_tensor(object)) throw std::invalid_argument("a tensor guard needs a tensor");
  const c10::TensorImpl& impl = *tensor_of(object).unsafeGetTensorImpl();
  if (impl.has_symbolic_sizes_strides()) {
    const c10::SymIntArrayRef sizes = impl.sym_sizes_default();
    TensorGuard guard{Py_TYPE(object),
                      impl.dtype().toScalarType(),
                      impl.device(),
                      impl.key_set().raw_repr(),
                      impl.requires_grad(),
                      {},
                      {}};
    guard.nested = true;
    for (const c10::SymInt& size : sizes) {
      guard.free_sizes.push_back(size.is_heap_allocated());
      guard.sizes.push_back(size.is_heap_allocated() ? 0 : size.as_int_unchecked());
    }
    guard.strides.assign(sizes.size(), 0);
    guard.free_strides.assign(sizes.size(), true);
    return guard;
  }
  if (!Policy::plain(impl)) {
    throw std::invalid_argument("a tensor whose sizes or strides are computed by its class can't be guarded");
  }
  return {Py_TYPE(object),      impl.dtype().toScalarType(), impl.device(),       impl.key_set().raw_repr(),
          impl.requires_grad(), impl.sizes().vec(),          impl.strides().vec()};
}

namespace {

/// As TensorImpl::requires_grad, which is two calls.
inline bool requires_grad(const c10::TensorImpl& impl) {
  const auto* meta = meta_of(impl);
  if (!meta) return false;
  return meta->is_view_ ? meta->requires_grad() : meta->AutogradMeta::requires_grad();
}

bool same_but_free(c10::IntArrayRef numbers, const int64_t* expected) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (expected[i] != kFree && numbers[i] != expected[i]) return false;
  }
  return true;
}

/// Past the class, which would be Python code.
bool matches_nested(const TensorCheck& check, const c10::TensorImpl& impl) {
  if (impl.key_set().raw_repr() != check.dispatch_keys || !impl.has_symbolic_sizes_strides() ||
      impl.dtype().toScalarType() != check.dtype || impl.device() != check.device) {
    return false;
  }
  const c10::SymIntArrayRef sizes = impl.sym_sizes_default();
  if (static_cast<int32_t>(sizes.size()) != check.rank || requires_grad(impl) != check.requires_grad) return false;
  for (int32_t i = 0; i < check.rank; ++i) {
    const int64_t expected = check.sizes_and_strides[i];
    const bool symbolic = sizes[i].is_heap_allocated();
    if (symbolic != (expected == kFree) || (!symbolic && sizes[i].as_int_unchecked() != expected)) return false;
  }
  return true;
}

inline bool matches(const TensorCheck& check, PyObject* object) {
  if (Py_TYPE(object) != check.type) return false;
  const c10::TensorImpl& impl = *tensor_of(object).unsafeGetTensorImpl();
  if (check.nested) return matches_nested(check, impl);
  if (impl.key_set().raw_repr() != check.dispatch_keys || !Policy::plain(impl) ||
      impl.dtype().toScalarType() != check.dtype || impl.device() != check.device) {
    return false;
  }
  c10::IntArrayRef sizes = impl.sizes();
  if (check.has_free) {
    return static_cast<int32_t>(sizes.size()) == check.rank && same_but_free(sizes, check.sizes_and_strides) &&
           same_but_free(impl.strides(), check.sizes_and_strides + check.rank) &&
           requires_grad(impl) == check.requires_grad;
  }
  return static_cast<int32_t>(sizes.size()) == check.rank &&
         same_block(sizes.data(), check.sizes_and_strides, check.rank) &&
         same_block(impl.strides().data(), check.sizes_and_strides + check.rank, check.rank) &&
         requires_grad(impl) == check.requires_grad;
}

}  // namespace

bool tensor_matches(const TensorCheck& check, PyObject* object) { return matches(check, object); }

namespace {

/// Where a plain tensor's elements are, one behind the other, and how many bytes; null: it is not that plain.
const void* elements(PyObject* object, size_t* size) {
  if (!is_tensor(object)) return nullptr;
  const c10::TensorImpl& impl = *tensor_of(object).unsafeGetTensorImpl();
  if (impl.layout() != c10::kStrided || !impl.device().is_cpu() || !Policy::plain(impl) || !impl.is_contiguous() ||
      !impl.has_storage()) {
    return nullptr;
  }
  *size = static_cast<size_t>(impl.numel()) * impl.itemsize();
  const c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  const size_t offset = static_cast<size_t>(impl.storage_offset()) * impl.itemsize();
  if (!storage.data() || offset + *size > storage.nbytes()) return nullptr;
  return static_cast<const char*>(storage.data()) + offset;
}

}  // namespace

Ref read_data(PyObject* object) {
  size_t size = 0;
  const void* data = elements(object, &size);
  if (!data) throw std::invalid_argument("a guard on a tensor's data needs a plain tensor of the CPU");
  return checked(PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(size)));
}

bool data_matches(PyObject* object, PyObject* bytes) {
  size_t size = 0;
  const void* data = elements(object, &size);
  return data && size == static_cast<size_t>(PyBytes_GET_SIZE(bytes)) &&
         std::memcmp(data, PyBytes_AS_STRING(bytes), size) == 0;
}

namespace {

/// Where a TensorImpl has what a look shows.
struct Layout : c10::TensorImpl {
  /// A look is at the last bytes of a TensorImpl: not one byte behind its end is read.
  static const unsigned char* begin(const c10::TensorImpl& impl) {
    static_assert(sizeof(c10::TensorImpl) >= TensorLook::kBytes);
    return reinterpret_cast<const unsigned char*>(&impl) + sizeof(c10::TensorImpl) - TensorLook::kBytes;
  }
  /// Sets the mask's bytes that count. False: the parts lie otherwise than expected.
  static bool mask(const c10::TensorImpl& impl, unsigned char* mask) {
    constexpr auto sizes_and_strides = &Layout::sizes_and_strides_;
    constexpr auto type = &Layout::data_type_;
    constexpr auto keys = &Layout::key_set_;
    const auto offset = [&](const void* part) { return static_cast<const unsigned char*>(part) - begin(impl); };
    const auto set = [&](ptrdiff_t from, ptrdiff_t size) {
      if (from < 0 || from + size > static_cast<ptrdiff_t>(TensorLook::kBytes)) return false;
      std::memset(mask + from, 0xff, size);
      return true;
    };
    const auto block = static_cast<ptrdiff_t>(impl.dim() * sizeof(int64_t));
    const ptrdiff_t rank_at = offset(&(impl.*sizes_and_strides)), type_at = offset(&(impl.*type)),
                    keys_at = offset(&(impl.*keys));
    // Between the dtype and the keys are the device and all flags.
    return set(rank_at, sizeof(size_t)) && set(offset(impl.sizes().data()), block) &&
           (strides_follow(impl) || set(offset(impl.strides().data()), block)) && type_at < keys_at &&
           set(type_at, keys_at + static_cast<ptrdiff_t>(sizeof(c10::DispatchKeySet)) - type_at);
  }
  /// The sizes and the flag is_contiguous allow no other strides: they would only for dimensions of size 1 or without
  /// elements.
  static bool strides_follow(const c10::TensorImpl& impl) {
    return impl.is_contiguous() && std::ranges::all_of(impl.sizes(), [](int64_t size) { return size > 1; });
  }
};

/// A look is compared in blocks; in a brief one the first two and the last count.
using Block = unsigned char __attribute__((vector_size(16)));
constexpr size_t kMiddle = 2 * sizeof(Block), kLast = TensorLook::kBytes - sizeof(Block);

[[gnu::always_inline]] inline Block difference(const unsigned char* now, const TensorLook& look, size_t at) {
  Block block;
  std::memcpy(&block, now + at, sizeof block);
  return (block ^ *reinterpret_cast<const Block*>(look.bytes + at)) & *reinterpret_cast<const Block*>(look.mask + at);
}

[[gnu::always_inline]] inline bool is_zero(Block block) {
  uint64_t parts[2];
  std::memcpy(parts, &block, sizeof parts);
  return (parts[0] | parts[1]) == 0;
}

}  // namespace

void SeenTensors::add(PyObject* object, const TensorCheck* check) {
  const c10::TensorImpl& impl = *tensor_of(object).unsafeGetTensorImpl();
  const auto* meta = meta_of(impl);
  TensorLook look{};
  look.check = check;
  look.has_meta = meta != nullptr;
  look.comparable = !check->has_free && !(meta && meta->is_view_) && Layout::mask(impl, look.mask);
  if (look.comparable) {
    const unsigned char* now = Layout::begin(impl);
    for (size_t i = 0; i < TensorLook::kBytes; ++i) look.bytes[i] = now[i] & look.mask[i];
    look.brief = std::all_of(look.mask + kMiddle, look.mask + kLast, [](unsigned char byte) { return byte == 0; });
  }
  auto known = std::ranges::find_if(kinds_, [&](const Alike& kind) { return kind.look.same_as(look); });
  if (known == kinds_.end()) known = kinds_.insert(known, {look, {}});
  known->tensors.push_back(object);
}

bool SeenTensors::Alike::match() const {
  const auto looks_the_same = [this](PyObject* object) {
    if (!look.comparable || Py_TYPE(object) != look.check->type) return false;
    const c10::TensorImpl& impl = *tensor_of(object).unsafeGetTensorImpl();
    const auto* meta = meta_of(impl);
    const unsigned char* now = Layout::begin(impl);
    Block differing = difference(now, look, 0) | difference(now, look, sizeof(Block)) | difference(now, look, kLast);
    for (size_t at = kMiddle; !look.brief && at < kLast; at += sizeof(Block)) differing |= difference(now, look, at);
    if (!is_zero(differing) || !meta != !look.has_meta) return false;
    return !meta || (!meta->is_view_ && meta->AutogradMeta::requires_grad() == look.check->requires_grad);
  };
  // From the back: where addresses ascend, processors fetch what lies behind them, which nobody needs.
  return std::ranges::all_of(std::views::reverse(tensors),
                             [&](PyObject* object) { return looks_the_same(object) || matches(*look.check, object); });
}

bool SeenTensors::all_match() const { return std::ranges::all_of(kinds_, &Alike::match); }

bool TensorLook::same_as(const TensorLook& other) const {
  return check == other.check && has_meta == other.has_meta && comparable == other.comparable &&
         std::memcmp(bytes, other.bytes, kBytes) == 0 && std::memcmp(mask, other.mask, kBytes) == 0;
}

namespace {

std::vector<int64_t> numbers_of(c10::SymIntArrayRef sizes) {
  std::vector<int64_t> numbers;
  for (const c10::SymInt& size : sizes) numbers.push_back(size.is_heap_allocated() ? kFree : size.as_int_unchecked());
  return numbers;
}

/// "[3, *, 8]".
std::string nested_text(c10::IntArrayRef sizes) {
  std::string text = "[";
  for (const int64_t size : sizes) {
    text += (text.size() > 1 ? ", " : "") + (size == kFree ? std::string("*") : std::to_string(size));
  }
  return text + "]";
}

}  // namespace

std::string tensor_mismatch(const TensorCheck& check, PyObject* object, const std::string& name) {
  std::ostringstream out;
  if (Py_TYPE(object) != check.type) {
    out << "expected type of '" << name << "' to be " << object_text(reinterpret_cast<PyObject*>(check.type))
        << ", but found " << object_text(reinterpret_cast<PyObject*>(Py_TYPE(object)));
    return out.str();
  }
  const c10::TensorImpl& impl = *tensor_of(object).unsafeGetTensorImpl();
  out << "tensor '" << name << "' ";
  if (impl.key_set().raw_repr() != check.dispatch_keys) {
    out << "dispatch key set mismatch. expected "
        << c10::toString(c10::DispatchKeySet(c10::DispatchKeySet::RAW, check.dispatch_keys)) << ", actual "
        << c10::toString(impl.key_set());
  } else if (check.nested ? !impl.has_symbolic_sizes_strides() : !Policy::plain(impl)) {
    out << (check.nested ? "has no nested sizes" : "has symbolic sizes or a class that computes them");
  } else if (impl.dtype().toScalarType() != check.dtype) {
    out << "dtype mismatch. expected " << c10::toString(check.dtype) << ", actual "
        << c10::toString(impl.dtype().toScalarType());
  } else if (impl.device() != check.device) {
    out << "device mismatch. expected " << check.device << ", actual " << impl.device();
  } else if (impl.requires_grad() != check.requires_grad) {
    out << "requires_grad mismatch. expected requires_grad=" << check.requires_grad;
  } else if (check.nested) {
    if (matches_nested(check, impl)) return "";
    const c10::SymIntArrayRef sizes = impl.sym_sizes_default();
    out << "size mismatch. expected " << nested_text({check.sizes_and_strides, static_cast<size_t>(check.rank)})
        << ", actual " << nested_text(numbers_of(sizes));
  } else if (static_cast<int32_t>(impl.sizes().size()) != check.rank) {
    out << "rank mismatch. expected " << check.rank << ", actual " << impl.sizes().size();
  } else {
    auto differing = [&](const char* what, c10::IntArrayRef actual, const int64_t* expected) {
      for (size_t i = 0; i < actual.size(); ++i) {
        if (actual[i] == expected[i] || expected[i] == kFree) continue;
        out << what << " mismatch at index " << i << ". expected " << expected[i] << ", actual " << actual[i];
        return true;
      }
      return false;
    };
    if (!differing("size", impl.sizes(), check.sizes_and_strides) &&
        !differing("stride", impl.strides(), check.sizes_and_strides + check.rank)) {
      return "";
    }
  }
  return out.str();
}

std::string tensor_text(const TensorGuard& guard, const std::string& name) {
  std::ostringstream out;
  out << "check_tensor(" << name << ", " << type_name(guard.type) << ", "
      << c10::toString(c10::DispatchKeySet(c10::DispatchKeySet::RAW, guard.dispatch_keys)) << ", torch."
      << c10::getDtypeNames(guard.dtype).first << ", device=" << guard.device
      << ", requires_grad=" << (guard.requires_grad ? "True" : "False") << ", size=" << list_text(guard.sizes)
      << ", stride=" << list_text(guard.strides) << ")";
  return out.str();
}

PyObject* load_grad(PyObject* object) {
  if (!is_tensor(object)) return nullptr;
  const c10::TensorImpl* impl = tensor_of(object).unsafeGetTensorImpl();
  if (!impl->autograd_meta()) return Py_None;
  const at::Tensor& grad = impl->grad();  // not Tensor::grad(), which warns about non-leaves
  if (!grad.defined()) return Py_None;
  const PausedCollector paused;
  try {
    PyObject* wrapped = THPVariable_Wrap(grad);
    Py_XDECREF(wrapped);  // the gradient keeps its object
    if (!wrapped) PyErr_Clear();
    return wrapped;
  } catch (...) {
    PyErr_Clear();
    return nullptr;
  }
}

}  // namespace magneto::guards
