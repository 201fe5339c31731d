// Elementwise operators: one element of the result for each element of the broadcast operands.
//
// Nearly all are rows of one generic rule, `pointwise`: the number of leading arguments that are operands, how the
// result's dtype follows from their promoted dtype, and which dtypes the kernel has (`accepted`), refuses with a
// RuntimeError
// (`checked`), or lacks (anything else: NotImplementedError).
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/ops/isin_meta.h>
#include <ATen/ops/pow_meta.h>

#include "fake/shape_rules.h"
#include "fake/structured.h"

namespace magneto::fake {
namespace {

constexpr DtypeSet kNumbersAndComplex = kNumbers | kComplexes;
constexpr DtypeSet kFloatsAndComplex = kFloats | kComplexes;
constexpr DtypeSet kBits = kBools | kIntegers;

enum class Result {
  Same,       // the promoted dtype
  Float,      // integers become the default dtype
  Bool,       //
  Real,       // complex becomes its value type
  RealFloat,  // both
};

c10::ScalarType result_dtype(Result result, c10::ScalarType promoted) {
  switch (result) {
    case Result::Same:
      return promoted;
    case Result::Float:
      return promote_to_float(promoted);
    case Result::Bool:
      return c10::ScalarType::Bool;
    case Result::Real:
      return c10::toRealValueType(promoted);
    case Result::RealFloat:
      return c10::toRealValueType(promote_to_float(promoted));
  }
  return promoted;
}

template <size_t operand_count, Result result, DtypeSet accepted, DtypeSet checked = kNone, bool inplace = false>
bool pointwise(Call& call) {
  Operands operands;
  for (size_t i = 0; i < operand_count; ++i) operands.add_argument(call, i);
  const c10::ScalarType promoted = operands.promoted();
  if (class_of(promoted) == kNone) return false;
  if constexpr (inplace) {
    add_inplace_result(call, operands, result_dtype(result, promoted));
  } else {
    add_result(call, operands, result_dtype(result, promoted));
  }
  check_dtype(promoted, accepted, checked);
  return true;
}

template <Result result, DtypeSet accepted, DtypeSet checked = kNone>
constexpr Rule unary = pointwise<1, result, accepted, checked>;
template <Result result, DtypeSet accepted, DtypeSet checked = kNone>
constexpr Rule unary_ = pointwise<1, result, accepted, checked, true>;
template <Result result, DtypeSet accepted, DtypeSet checked = kNone>
constexpr Rule binary = pointwise<2, result, accepted, checked>;
template <Result result, DtypeSet accepted, DtypeSet checked = kNone>
constexpr Rule binary_ = pointwise<2, result, accepted, checked, true>;
template <Result result, DtypeSet accepted, DtypeSet checked = kNone>
constexpr Rule ternary = pointwise<3, result, accepted, checked>;
template <Result result, DtypeSet accepted, DtypeSet checked = kNone>
constexpr Rule ternary_ = pointwise<3, result, accepted, checked, true>;

/// Operators that make their result with empty_like rather than by TensorIterator.
template <Rule rule>
bool keeping_layout(Call& call) {
  if (!rule(call)) return false;
  const c10::ScalarType dtype = call.results()[0].toTensor().scalar_type();
  call.results()[0] = new_like(call, call.tensor(0), dtype, call.tensor(0).device());
  return true;
}

bool prelu(Call& call) {
  const at::Tensor &self = call.tensor(0), &weight = call.tensor(1);
  if (at::infer_size_dimvector(self.sizes(), weight.sizes()) != at::DimVector(self.sizes())) return false;
  if (!(class_of(self.scalar_type()) & kFloats) || weight.scalar_type() != self.scalar_type()) return false;
  call.result(new_like(call, self, self.scalar_type(), self.device()));
  return true;
}

/// The gradients of both operands, before that of the weight is summed.
bool prelu_backward(Call& call) {
  Operands operands;
  for (const size_t i : {1, 2, 0}) {  // the order in which PyTorch's iterator is given them
    if (call.tensor(i).scalar_type() != call.tensor(0).scalar_type()) return false;
    operands.add(call.tensor(i));
  }
  const c10::ScalarType dtype = operands.promoted();
  if (!(class_of(dtype) & kFloats)) return false;
  for (int result = 0; result < 2; ++result) add_result(call, operands, dtype);
  return true;
}

/// What promotes no dtypes: eager refuses two different ones.
template <Rule rule>
bool of_one_dtype(Call& call) {
  return call.tensor(0).scalar_type() == call.tensor(1).scalar_type() && rule(call);
}

/// Real tensors are their own conjugates.
bool conj_physical_(Call& call) {
  if (call.tensor(0).is_complex()) return unary_<Result::Same, kAll>(call);
  call.result(call.tensor(0));
  return true;
}

/// addcdiv refuses to divide integers by integers.
template <bool inplace>
bool addcdiv(Call& call) {
  TORCH_CHECK(!c10::isIntegralType(call.tensor(1).scalar_type(), true) ||
                  !c10::isIntegralType(call.tensor(2).scalar_type(), true),
              "Integer division with addcdiv is no longer supported");
  return pointwise<3, Result::Same, kFloatsAndComplex, kNone, inplace>(call);
}

/// Unlike other in-place operators, on overlapping memory too.
bool threshold_(Call& call) {
  const c10::ScalarType dtype = call.tensor(0).scalar_type();
  if (class_of(dtype) == kNone) return false;
  check_dtype(dtype, kNumbers, kNone);
  call.result(call.tensor(0));
  return true;
}

/// threshold: its numbers must be real.
template <Rule rule>
bool real_limits(Call& call) {
  if (!rule(call)) return false;
  for (size_t i = 1; i < call.size(); ++i) {
    TORCH_CHECK(!call.arg(i).toScalar().isComplex(), "value cannot be converted to type ",
                c10::toString(call.tensor(0).scalar_type()), " without overflow");
  }
  return true;
}

/// hardtanh: limits below zero don't exist in unsigned dtypes.
template <Rule rule>
bool unless_unsigned(Call& call) {
  return call.tensor(0).scalar_type() != c10::ScalarType::Byte && rule(call);
}

// add, sub, rsub: a third argument alpha, whose type must fit.

bool is_bool(const Call& call, size_t i) {
  return call.arg(i).isTensor() ? call.tensor(i).scalar_type() == c10::ScalarType::Bool
                                : call.arg(i).toScalar().isBoolean();
}

void check_subtraction(const Call& call) {
  TORCH_CHECK(!is_bool(call, 0) && !is_bool(call, 1),
              "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, "
              "use the `~` or `logical_not()` operator instead.");
}

template <bool inplace, bool subtract = false, bool reversed = false>
bool add_with_alpha(Call& call) {
  if (subtract) check_subtraction(call);
  Operands operands;
  operands.add_argument(call, reversed ? 1 : 0);
  operands.add_argument(call, reversed ? 0 : 1);
  const c10::ScalarType promoted = operands.promoted();
  if (class_of(promoted) == kNone) return false;
  at::native::alpha_check(promoted, call.arg(2).toScalar());
  if (inplace) {
    add_inplace_result(call, operands, promoted);
  } else {
    add_result(call, operands, promoted);
  }
  return true;
}

/// div with a rounding mode: None divides truly; "floor" and "trunc" keep integers.
template <bool inplace>
bool div_mode(Call& call) {
  if (call.is_none(2)) {
    return inplace ? binary_<Result::Float, kAll>(call) : binary<Result::Float, kAll>(call);
  }
  const std::string& mode = call.arg(2).toStringRef();
  TORCH_CHECK(mode == "trunc" || mode == "floor",
              "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '", mode, "'");
  return inplace ? binary_<Result::Same, kNumbers>(call) : binary<Result::Same, kNumbers>(call);
}

// Operators that convert their operand first and then run over the converted copy alone: their strides come from the
// copy.

void add_converted(Call& call, const at::Tensor& self, c10::ScalarType dtype) {
  const Layout layout = self.scalar_type() == dtype ? elementwise_layout(Geometry(self))
                                                    : elementwise_layout(Geometry(like_layout(self)));
  call.result(call.empty(layout.sizes, layout.strides, dtype, self.device()));
}

template <bool inplace>
bool add_converted_or_self(Call& call, c10::ScalarType dtype) {
  const at::Tensor& self = call.tensor(0);
  if (!inplace) {
    add_converted(call, self, dtype);
    return true;
  }
  Operands operands;
  operands.add(self);
  add_inplace_result(call, operands, dtype);
  return true;
}

template <bool inplace>
bool pow_tensor_scalar(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const c10::Scalar exponent = call.arg(1).toScalar();
  TORCH_CHECK(!(c10::isIntegralType(self.scalar_type(), true) && exponent.isIntegral(true) && exponent.toLong() < 0),
              "Integers to negative integer powers are not allowed.");
  Operands operands;
  operands.add(self);
  operands.add(exponent);
  const c10::ScalarType dtype = operands.promoted();
  if (class_of(dtype) == kNone) return false;
  return add_converted_or_self<inplace>(call, dtype);
}

bool pow_scalar(Call& call) {
  if (call.tensor(1).scalar_type() == c10::ScalarType::Bool) return false;  // depends on the base's value
  Operands operands;
  operands.add_argument(call, 0);
  operands.add(call.tensor(1));
  if (class_of(operands.promoted()) == kNone) return false;
  return structured<at::meta::structured_pow_Scalar>(call);
}

/// clamp, clamp_min, clamp_max with numbers: arguments 1 and, if there is one, 2 are limits.
template <bool inplace>
bool clamp(Call& call) {
  const at::Tensor& self = call.tensor(0);
  Operands operands;
  operands.add(self);
  bool limited = false;
  for (size_t i = 1; i < call.size(); ++i) {
    if (call.is_none(i)) continue;
    operands.add(call.arg(i).toScalar());
    limited = true;
  }
  TORCH_CHECK(limited, "torch.clamp: At least one of 'min' or 'max' must not be None");
  const c10::ScalarType promoted = operands.promoted();
  if (c10::isComplexType(self.scalar_type()) || c10::isComplexType(promoted)) refuse_dtype(promoted);
  const c10::ScalarType dtype = c10::isFloatingType(self.scalar_type()) ? self.scalar_type() : promoted;
  if (class_of(dtype) == kNone || dtype == c10::ScalarType::Bool) return false;
  if (inplace) {
    TORCH_CHECK(dtype == self.scalar_type(), "result type ", c10::toString(dtype),
                " can't be cast to the desired output type ", c10::toString(self.scalar_type()));
  }
  return add_converted_or_self<inplace>(call, dtype);
}

template <bool inplace>
bool clamp_tensor(Call& call) {
  TORCH_CHECK(!call.is_none(1) || !call.is_none(2), "torch.clamp: At least one of 'min' or 'max' must not be None");
  Operands operands;
  for (size_t i = 0; i < 3; ++i) {
    if (!call.is_none(i)) operands.add(call.tensor(i));
  }
  const c10::ScalarType promoted = operands.promoted();
  if (class_of(promoted) == kNone) return false;
  if (c10::isComplexType(promoted)) refuse_dtype(promoted);
  if (inplace) {
    add_inplace_result(call, operands, promoted);
  } else {
    add_result(call, operands, promoted);
  }
  return true;
}

bool where(Call& call) {
  const at::Tensor &condition = call.tensor(0), &self = call.tensor(1), &other = call.tensor(2);
  Operands promoting;
  promoting.add(self);
  promoting.add(other);
  const c10::ScalarType dtype = promoting.promoted();
  if (class_of(dtype) == kNone) return false;
  if (condition.scalar_type() == c10::ScalarType::Byte) return false;  // eager warns
  TORCH_CHECK(condition.scalar_type() == c10::ScalarType::Bool,
              "where expected condition to be a boolean tensor, but got a tensor with dtype ", condition.scalar_type());
  // Converted operands are dense copies.
  auto converted = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == dtype ? Layout{at::DimVector(tensor.sizes()), at::DimVector(tensor.strides())}
                                         : like_layout(tensor);
  };
  const Layout self_layout = converted(self), other_layout = converted(other);
  const Layout layout = elementwise_layout({Geometry(condition), Geometry(self_layout), Geometry(other_layout)});
  Operands placed;
  for (size_t i = 0; i < 3; ++i) placed.add_unpromoted(call.tensor(i));
  call.result(call.empty(layout.sizes, layout.strides, dtype, placed.device()));
  return true;
}

/// lerp: no promotion.
template <bool inplace>
bool lerp(Call& call) {
  const c10::ScalarType dtype = call.tensor(0).scalar_type();
  Operands operands;
  for (size_t i = 0; i < 3; ++i) {
    if (!call.arg(i).isTensor()) continue;
    if (i == 2 && call.tensor(2).dim() == 0 && call.tensor(2).scalar_type() != dtype) return false;
    TORCH_CHECK(call.tensor(i).scalar_type() == dtype, "expected dtype ", dtype, " for `", i == 1 ? "end" : "weight",
                "` but got dtype ", call.tensor(i).scalar_type());
    operands.add(call.tensor(i));
  }
  if (class_of(dtype) == kNone) return false;
  if (inplace) {
    add_inplace_result(call, operands, dtype);
  } else {
    add_result(call, operands, dtype);
  }
  check_dtype(dtype, kFloats | kComplexes, kNone);
  return true;
}

/// complex(real, imag), polar(abs, angle).
bool make_complex(Call& call) {
  const c10::ScalarType dtype = call.tensor(0).scalar_type();
  TORCH_CHECK(dtype == call.tensor(1).scalar_type(), "Expected object of scalar type ", dtype, " but got scalar type ",
              call.tensor(1).scalar_type(), " for second argument");
  TORCH_CHECK(c10::isFloatingType(dtype), "Expected both inputs to be Half, Float or Double tensors but got ", dtype);
  if (!(class_of(dtype) & kSingles)) return false;
  Operands operands;
  operands.add(call.tensor(0));
  operands.add(call.tensor(1));
  add_result(call, operands, c10::toComplexType(dtype));
  return true;
}

/// A backward formula over two tensors, in the order in which its kernel takes them; other arguments are numbers.
template <size_t first = 0, size_t second = 1>
bool backward(Call& call) {
  Operands operands;
  operands.add(call.tensor(first));
  operands.add(call.tensor(second));
  const c10::ScalarType promoted = operands.promoted();
  if (!(class_of(promoted) & kFloats)) return false;
  add_result(call, operands, promoted);
  return true;
}

// Writes.

bool fill_(Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (class_of(self.scalar_type()) == kNone) return false;
  if (call.size() > 1 && call.arg(1).isTensor()) {
    TORCH_CHECK(call.tensor(1).dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
                call.tensor(1).dim(), " dimensions.");
    check_no_internal_overlap(self);
  } else if (call.size() > 1) {
    if (call.arg(1).toScalar().isComplex() && !c10::isComplexType(self.scalar_type())) return false;
  }
  call.result(self);
  return true;
}

bool copy_(Call& call) {
  const at::Tensor &self = call.tensor(0), &source = call.tensor(1);
  const bool same_memory = self.storage().unsafeGetStorageImpl() == source.storage().unsafeGetStorageImpl() &&
                           self.storage_offset() == source.storage_offset() && self.sizes() == source.sizes() &&
                           self.strides() == source.strides() && self.scalar_type() == source.scalar_type();
  if (same_memory) {
    call.result(self);
    return true;
  }
  check_no_internal_overlap(self);
  if (self.device() == source.device()) check_no_partial_overlap(self, source);
  TORCH_CHECK(at::infer_size_dimvector(self.sizes(), source.sizes()) == at::DimVector(self.sizes()),
              "output with shape ", self.sizes(), " doesn't match the broadcast shape ",
              at::infer_size(self.sizes(), source.sizes()));
  call.result(self);
  return true;
}

void check_masked_fill(const Call& call) {
  const at::Tensor &self = call.tensor(0), &mask = call.tensor(1);
  TORCH_CHECK(mask.scalar_type() == c10::ScalarType::Bool,
              "masked_fill_ only supports boolean masks, but got mask with dtype ", mask.dtype());
  if (call.arg(2).isTensor()) {
    TORCH_CHECK(call.tensor(2).dim() == 0,
                "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ", call.tensor(2).dim(),
                " dimension(s).");
  }
  TORCH_CHECK(self.device() == mask.device(), "expected self and mask to be on the same device, but got mask on ",
              mask.device(), " and self on ", self.device());
}

/// True if the value's dtype goes into self's without a check on its value.
bool fits(const Call& call, size_t value) {
  const c10::ScalarType dtype = call.tensor(0).scalar_type();
  const c10::ScalarType value_dtype =
      call.arg(value).isTensor() ? call.tensor(value).scalar_type() : call.arg(value).toScalar().type();
  if (class_of(dtype) == kNone) return false;
  return c10::isFloatingType(dtype) ? !c10::isComplexType(value_dtype) : c10::canCast(value_dtype, dtype);
}

bool masked_fill(Call& call) {
  if (!fits(call, 2)) return false;
  const at::Tensor &self = call.tensor(0), &mask = call.tensor(1);
  const at::DimVector sizes = at::infer_size_dimvector(mask.sizes(), self.sizes());
  check_masked_fill(call);
  call.result(call.empty(sizes, self.scalar_type(), self.device()));
  return true;
}

bool masked_fill_(Call& call) {
  if (!fits(call, 2)) return false;
  check_masked_fill(call);
  const at::Tensor &self = call.tensor(0), &mask = call.tensor(1);
  check_no_partial_overlap(self, mask);
  const at::DimVector sizes = at::infer_size_dimvector(self.sizes(), mask.sizes());
  TORCH_CHECK(self.sizes() == at::IntArrayRef(sizes), "output with shape ", self.sizes(),
              " doesn't match the broadcast shape ", at::IntArrayRef(sizes));
  call.result(self);
  return true;
}

// Random.

bool native_dropout(Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (self.numel() == 0 || !(class_of(self.scalar_type()) & kFloats)) return false;
  const at::Tensor mask = new_like(call, self, c10::ScalarType::Bool, self.device());
  if (call.is_none(2) || call.boolean(2)) {
    const Layout product = elementwise_layout({Geometry(self), Geometry(mask)});
    call.result(call.empty(product.sizes, product.strides, self.scalar_type(), self.device()));
  } else {
    call.result(new_like(call, self, self.scalar_type(), self.device()));
  }
  call.result(mask);
  return true;
}

/// (grad, mask, scale).
bool native_dropout_backward(Call& call) {
  const at::Tensor &grad = call.tensor(0), &mask = call.tensor(1);
  if (!grad.is_cpu() || !(class_of(grad.scalar_type()) & kFloats) || mask.scalar_type() != at::kBool) return false;
  return add_elementwise(call, {0, 1}, grad.scalar_type(), /*reduced=*/false);
}

bool bernoulli(Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (!(class_of(self.scalar_type()) & (kFloats | kBools))) return false;
  call.result(call.empty(self.sizes(), self.scalar_type(), self.device()));
  return true;
}

/// In-place random fills: only the data changes.
template <DtypeSet accepted, DtypeSet checked = kNone>
bool random_(Call& call) {
  const DtypeSet dtype = class_of(call.tensor(0).scalar_type());
  if (!(dtype & accepted)) {
    if (dtype == kNone || (dtype & kComplexes)) return false;
    check_dtype(call.tensor(0).scalar_type(), accepted, checked);
  }
  check_no_internal_overlap(call.tensor(0));
  call.result(call.tensor(0));
  return true;
}

/// ...whose kernels refuse complex numbers as they do other dtypes.
template <DtypeSet accepted>
bool random_reals_(Call& call) {
  if (class_of(call.tensor(0).scalar_type()) == kNone) return false;
  check_dtype(call.tensor(0).scalar_type(), accepted, kNone);
  return random_<accepted>(call);
}

bool log_sigmoid_forward(Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (class_of(self.scalar_type()) == kNone) return false;
  check_dtype(self.scalar_type(), kFloats, kNone);
  call.result(call.empty(self.sizes(), self.scalar_type(), self.device()));
  call.result(call.empty(self.sizes(), self.scalar_type(), self.device()));
  return true;
}

/// glu: the halves along a dimension are the two operands.
template <class C>
bool glu(C& call) {
  const at::Tensor& self = call.tensor(0);
  TORCH_CHECK(self.dim() > 0, "glu does not support 0-dimensional tensors");
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), self.dim());
  auto sizes = sizes_of<C>(self);
  TORCH_CHECK(sizes[dim] % 2 == 0, "Halving dimension must be even, but dimension ", dim, " is size ", sizes[dim]);
  if (kPlain<C> && !(class_of(self.scalar_type()) & kFloats)) return false;
  sizes[dim] = sizes[dim] / 2;
  return add(call, sizes, self.scalar_type(), self.device(), [&](const at::DimVector& now) {
    const Geometry half(now, self.strides());
    return elementwise_layout({half, half}).strides;
  });
}

/// fake_quantize_per_tensor_affine_cachemask(self, scale, zero_point, quant_min, quant_max): the result, and where the
/// gradient passes.
template <class C>
bool fake_quantize(C& call) {
  const at::Tensor& self = call.tensor(0);
  if constexpr (kPlain<C>) {
    const int64_t zero = call.integer(2), low = call.integer(3), high = call.integer(4);
    if (self.scalar_type() != c10::kFloat || low > high || zero < low || zero > high) return false;
  }
  return add_like(call, self, self.scalar_type(), self.device()) && add_like(call, self, c10::kBool, self.device());
}

}  // namespace

std::span<const RuleRow> pointwise_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_pointwise(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_pointwise_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_pointwise(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
