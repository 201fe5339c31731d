#include "guards/tensor_check.h"

#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/python_variable.h>

#include <sstream>
#include <stdexcept>

#include "guards/objects.h"
#include "guards/text.h"

namespace magneto::guards {

namespace {

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
  if (!Policy::plain(impl)) {
    throw std::invalid_argument(
        "a tensor whose sizes or strides are symbolic or computed by its class can't be guarded");
  }
  return {Py_TYPE(object),      impl.dtype().toScalarType(), impl.device(),       impl.key_set().raw_repr(),
          impl.requires_grad(), impl.sizes().vec(),          impl.strides().vec()};
}

bool tensor_matches(const TensorCheck& check, PyObject* object) {
  if (Py_TYPE(object) != check.type) return false;
  const c10::TensorImpl* impl = tensor_of(object).unsafeGetTensorImpl();
  if (impl->key_set().raw_repr() != check.dispatch_keys || !Policy::plain(*impl) ||
      impl->dtype().toScalarType() != check.dtype || impl->device() != check.device) {
    return false;
  }
  c10::IntArrayRef sizes = impl->sizes();
  return static_cast<int32_t>(sizes.size()) == check.rank &&
         same_block(sizes.data(), check.sizes_and_strides, check.rank) &&
         same_block(impl->strides().data(), check.sizes_and_strides + check.rank, check.rank) &&
         impl->requires_grad() == check.requires_grad;
}

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
  } else if (!Policy::plain(impl)) {
    out << "has symbolic sizes or a class that computes them";
  } else if (impl.dtype().toScalarType() != check.dtype) {
    out << "dtype mismatch. expected " << c10::toString(check.dtype) << ", actual "
        << c10::toString(impl.dtype().toScalarType());
  } else if (impl.device() != check.device) {
    out << "device mismatch. expected " << check.device << ", actual " << impl.device();
  } else if (impl.requires_grad() != check.requires_grad) {
    out << "requires_grad mismatch. expected requires_grad=" << check.requires_grad;
  } else if (static_cast<int32_t>(impl.sizes().size()) != check.rank) {
    out << "rank mismatch. expected " << check.rank << ", actual " << impl.sizes().size();
  } else {
    auto differing = [&](const char* what, c10::IntArrayRef actual, const int64_t* expected) {
      for (size_t i = 0; i < actual.size(); ++i) {
        if (actual[i] == expected[i]) continue;
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
  NoCollection no_collection;
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
