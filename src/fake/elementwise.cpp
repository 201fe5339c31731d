#include "fake/elementwise.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/DefaultDtype.h>

namespace magneto::fake {

DtypeSet class_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Bool:
      return kBools;
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
      return kIntegers;
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
      return kSingles;
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
      return kHalves;
    case c10::ScalarType::ComplexFloat:
    case c10::ScalarType::ComplexDouble:
      return kComplexes;
    default:
      return kNone;
  }
}

void refuse_dtype(c10::ScalarType dtype) {
  C10_THROW_ERROR(NotImplementedError, c10::str("this operator is not implemented for '", c10::toString(dtype), "'"));
}

void check_dtype(c10::ScalarType dtype, DtypeSet accepted, DtypeSet checked) {
  const DtypeSet dtype_class = class_of(dtype);
  TORCH_CHECK(!(dtype_class & checked), "the operator is not supported for ", c10::toString(dtype), " tensors");
  if (!(dtype_class & accepted)) refuse_dtype(dtype);
}

void Operands::add_argument(const Call& call, size_t i) {
  if (call.arg(i).isTensor()) {
    add(call.tensor(i));
  } else {
    add(call.arg(i).toScalar());
  }
}

c10::Device Operands::device() const {
  const at::Tensor* chosen = nullptr;
  auto is_cpu_number = [](const at::Tensor& tensor) { return tensor.dim() == 0 && tensor.device().is_cpu(); };
  for (const at::Tensor* tensor : tensors_) {
    if (!chosen || (is_cpu_number(*chosen) && !is_cpu_number(*tensor))) chosen = tensor;
  }
  const c10::Device device = chosen->device();
  for (const at::Tensor* tensor : tensors_) {
    TORCH_CHECK(tensor->device() == device || is_cpu_number(*tensor),
                "Expected all tensors to be on the same device, but found at least two devices, ", device, " and ",
                tensor->device(), "!");
  }
  return device;
}

Layout Operands::layout(c10::ScalarType dtype) const {
  const c10::ScalarType promoted = this->promoted();
  const bool to_float = c10::isIntegralType(promoted, /*includeBool=*/true) && !c10::isIntegralType(dtype, true);
  const c10::ScalarType computed = to_float ? dtype : promoted;
  // On the CPU, operands of other dtypes are converted first: what the iterator sees are dense copies.
  c10::SmallVector<Geometry, 4> geometries;
  c10::SmallVector<Layout, 4> copies;
  copies.reserve(geometries_.size());
  for (size_t i = 0; i < geometries_.size(); ++i) {
    const at::Tensor* tensor = promoting_[i];
    const bool converted = tensor && tensor->scalar_type() != computed && tensor->device().is_cpu();
    if (converted) copies.push_back(like_layout(geometries_[i]));
    geometries.push_back(converted ? Geometry(copies.back()) : geometries_[i]);
  }
  return elementwise_layout(geometries);
}

void add_result(Call& call, const Operands& operands, c10::ScalarType dtype) {
  const Layout layout = operands.layout(dtype);
  call.result(call.empty(layout.sizes, layout.strides, dtype, operands.device()));
}

void add_inplace_result(Call& call, const Operands& operands, c10::ScalarType dtype) {
  const at::Tensor& self = call.tensor(0);
  check_no_internal_overlap(self);
  for (size_t i = 0; i < operands.tensor_count(); ++i) check_no_partial_overlap(self, operands.tensor(i));
  const Layout layout = operands.layout(dtype);
  TORCH_CHECK(self.sizes() == at::IntArrayRef(layout.sizes), "output with shape ", self.sizes(),
              " doesn't match the broadcast shape ", at::IntArrayRef(layout.sizes));
  TORCH_CHECK(c10::canCast(dtype, self.scalar_type()), "result type ", c10::toString(dtype),
              " can't be cast to the desired output type ", c10::toString(self.scalar_type()));
  operands.device();
  call.result(self);
}

void check_no_internal_overlap(const at::Tensor& self) {
  TORCH_CHECK(at::has_internal_overlap(self.unsafeGetTensorImpl()) != at::MemOverlap::Yes,
              "unsupported operation: more than one element of the written-to tensor refers to a single memory "
              "location. Please clone() the tensor before performing the operation.");
}

void check_no_partial_overlap(const at::Tensor& self, const at::Tensor& other) {
  if (self.is_same(other) || self.numel() == 0 || other.numel() == 0) return;
  // Not Storage::is_alias_of, which looks at the data pointer.
  if (self.storage().unsafeGetStorageImpl() != other.storage().unsafeGetStorageImpl()) return;
  if (!self.is_non_overlapping_and_dense() || !other.is_non_overlapping_and_dense()) return;  // eager: too hard
  const int64_t self_begin = self.storage_offset() * static_cast<int64_t>(self.itemsize());
  const int64_t self_end = self_begin + static_cast<int64_t>(self.nbytes());
  const int64_t other_begin = other.storage_offset() * static_cast<int64_t>(other.itemsize());
  const int64_t other_end = other_begin + static_cast<int64_t>(other.nbytes());
  const bool full = self_begin == other_begin && self_end == other_end && self.strides() == other.strides();
  TORCH_CHECK(full || self_begin >= other_end || other_begin >= self_end,
              "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
              "memory location. Please clone() the tensor before performing the operation.");
}

c10::ScalarType promote_to_float(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true) ? c10::get_default_dtype_as_scalartype() : dtype;
}

at::Tensor new_like(Call& call, const at::Tensor& source, c10::ScalarType dtype, c10::Device device,
                    at::MemoryFormat format) {
  const Layout layout = like_layout(source, format);
  return call.empty(layout.sizes, layout.strides, dtype, device);
}

}  // namespace magneto::fake
