#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <c10/util/safe_numerics.h>

#include "fake/rules.h"
#include "fake/session.h"

namespace magneto::fake {

namespace {

Session::Impl& session() { return Session::current()->impl(); }

}  // namespace

std::vector<at::Tensor> Call::tensors(size_t i) const {
  if (args_[i].isTensorList()) return args_[i].toTensorVector();
  std::vector<at::Tensor> tensors;  // Tensor?[]
  c10::ArrayRef<c10::IValue> items = args_[i].toListRef();
  tensors.reserve(items.size());
  for (const c10::IValue& item : items) tensors.push_back(item.isNone() ? at::Tensor() : item.toTensor());
  return tensors;
}

std::vector<int64_t> Call::ints(size_t i) const {
  if (args_[i].isIntList()) return args_[i].toIntVector();
  std::vector<int64_t> values;
  c10::ArrayRef<c10::IValue> items = args_[i].toListRef();
  values.reserve(items.size());
  for (const c10::IValue& item : items) {
    values.push_back(item.isSymInt() ? item.toSymInt().guard_int(__FILE__, __LINE__) : item.toInt());
  }
  return values;
}

int64_t Call::integer(size_t i) const {
  return args_[i].isSymInt() ? args_[i].toSymInt().guard_int(__FILE__, __LINE__) : args_[i].toInt();
}

at::Tensor Call::empty(at::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device) const {
  c10::SmallVector<int64_t, 5> strides(sizes.size(), 1);
  bool overflows = false;
  for (size_t i = sizes.size(); i-- > 1;) {
    overflows |= c10::mul_overflows(strides[i], std::max<int64_t>(sizes[i], 1), &strides[i - 1]);
  }
  if (overflows) {  // as eager says it: of the memory first
    at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(dtype));
    TORCH_CHECK(false, "Stride calculation overflowed");
  }
  return session().empty(sizes, strides, dtype, device);
}

at::Tensor Call::empty(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype,
                       c10::Device device) const {
  return session().empty(sizes, strides, dtype, device);
}

at::Tensor Call::view(const at::Tensor& base, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) const {
  return session().view(base, sizes, strides, offset, base.scalar_type());
}

at::Tensor Call::view(const at::Tensor& base, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset,
                      c10::ScalarType dtype) const {
  return session().view(base, sizes, strides, offset, dtype);
}

void Call::restride(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) const {
  session().change_metadata(*as_fake(self), sizes, strides, offset);
}

}  // namespace magneto::fake
