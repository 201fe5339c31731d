// What elementwise rules share: operands (tensors and numbers), type promotion, common device, new and in-place
// results.
#pragma once

#include <ATen/native/TypeProperties.h>

#include "fake/rules.h"
#include "fake/strides.h"

namespace magneto::fake {

/// Sets of dtypes, by class: which ones a kernel accepts.
using DtypeSet = uint8_t;
enum : DtypeSet {
  kNone = 0,
  kBools = 1,
  kIntegers = 2,
  kSingles = 4,  // float, double
  kHalves = 8,   // half, bfloat16
  kComplexes = 16,
  kFloats = kSingles | kHalves,
  kNumbers = kIntegers | kFloats,
  kReals = kBools | kNumbers,
  kAll = kReals | kComplexes,
};

/// The class of a dtype; kNone for those that rules decline (float8, complex half, bits, the wider unsigned...).
DtypeSet class_of(c10::ScalarType dtype);
/// A tensor on the CPU, of one of these dtypes.
inline bool is_plain(const at::Tensor& tensor, DtypeSet dtypes = kFloats) {
  return tensor.is_cpu() && (class_of(tensor.scalar_type()) & dtypes);
}

/// Throws what eager throws when a kernel has no case for the dtype.
[[noreturn]] void refuse_dtype(c10::ScalarType dtype);

/// Refuses a dtype in `checked` with a RuntimeError, another one that is not in `accepted` with a NotImplementedError.
void check_dtype(c10::ScalarType dtype, DtypeSet accepted, DtypeSet checked);

/// The operands of one TensorIterator: geometry, promotion and device in one walk.
class Operands {
 public:
  void add(const at::Tensor& tensor) {
    geometries_.push_back(Geometry(tensor));
    promoting_.push_back(&tensor);
    tensors_.push_back(&tensor);
    state_ = at::native::update_result_type_state(tensor, state_);
  }
  void add(const c10::Scalar& number) {
    geometries_.push_back(Geometry::scalar());
    promoting_.push_back(nullptr);
    state_ = at::native::update_result_type_state(number, state_);
  }
  /// An operand whose dtype takes no part in the promotion (a mask), or which was converted (`layout`).
  void add_unpromoted(const at::Tensor& tensor) {
    geometries_.push_back(Geometry(tensor));
    promoting_.push_back(nullptr);
    tensors_.push_back(&tensor);
  }
  /// Adds argument `i`, a tensor or a number.
  void add_argument(const Call& call, size_t i);

  c10::ScalarType promoted() const { return at::native::result_type(state_); }
  /// The device of the first operand that is no CPU number; throws eager's error if another one differs.
  c10::Device device() const;
  /// Of the result, which is of `dtype`.
  Layout layout(c10::ScalarType dtype) const;
  const at::Tensor& tensor(size_t i) const { return *tensors_[i]; }
  size_t tensor_count() const { return tensors_.size(); }

 private:
  c10::SmallVector<Geometry, 4> geometries_;
  c10::SmallVector<const at::Tensor*, 4> promoting_;  // the tensor that a geometry is of, if it takes part
  c10::SmallVector<const at::Tensor*, 4> tensors_;
  at::native::ResultTypeState state_;
};

/// Adds the new result of an elementwise operator.
void add_result(Call& call, const Operands& operands, c10::ScalarType dtype);

/// Adds `self`, argument 0, as the result of an in-place operator that computes in `dtype`. Throws like eager if the
/// shape, the dtype or the memory overlap forbids it.
void add_inplace_result(Call& call, const Operands& operands, c10::ScalarType dtype);

/// Throws if two elements of `self` share memory, or if `other` overlaps it partly.
void check_no_internal_overlap(const at::Tensor& self);
void check_no_partial_overlap(const at::Tensor& self, const at::Tensor& other);

/// The default dtype for integers and booleans, `dtype` itself otherwise.
c10::ScalarType promote_to_float(c10::ScalarType dtype);

/// A new fake like `source` (see like_layout).
at::Tensor new_like(Call& call, const at::Tensor& source, c10::ScalarType dtype, c10::Device device,
                    at::MemoryFormat format = at::MemoryFormat::Preserve);

}  // namespace magneto::fake
