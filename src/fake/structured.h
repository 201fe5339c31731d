// Rules made from PyTorch's own structured meta functions.
//
// `at::meta::structured_topk::meta` and its like check the arguments and name the results' geometry, reading nothing
// but metadata: on fakes they are exact, messages included. `structured<at::meta::structured_topk>` is such a rule; it
// takes the types of the arguments from the function's signature. Not for operators built on TensorIterator, whose meta
// functions want data pointers (see elementwise.h).
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/IListRef.h>

#include <array>
#include <optional>
#include <tuple>
#include <type_traits>

#include "fake/elementwise.h"

namespace magneto::fake {

/// Argument `i` of a call as the type T of a meta function's parameter; owns what the parameter only refers to.
template <typename T>
struct Argument;

#define MAGNETO_ARGUMENT(Type, Stored, initial)              \
  template <>                                                \
  struct Argument<Type> {                                    \
    Argument(const Call& call, size_t i) : value(initial) {} \
    Stored value;                                            \
    Type get() const { return value; }                       \
  };
MAGNETO_ARGUMENT(at::Tensor, const at::Tensor&, call.tensor(i))
MAGNETO_ARGUMENT(int64_t, int64_t, call.integer(i))
MAGNETO_ARGUMENT(bool, bool, call.boolean(i))
MAGNETO_ARGUMENT(double, double, call.arg(i).toDouble())
MAGNETO_ARGUMENT(c10::Scalar, c10::Scalar, call.arg(i).toScalar())
MAGNETO_ARGUMENT(at::IntArrayRef, std::vector<int64_t>, call.ints(i))
MAGNETO_ARGUMENT(c10::string_view, std::string, call.arg(i).toStringRef())
MAGNETO_ARGUMENT(at::ITensorListRef, std::vector<at::Tensor>, call.tensors(i))
MAGNETO_ARGUMENT(c10::ScalarType, c10::ScalarType, call.arg(i).toScalarType())
#undef MAGNETO_ARGUMENT

template <typename T>
struct Argument<std::optional<T>> {
  Argument(const Call& call, size_t i) {
    if (!call.is_none(i)) value.emplace(Argument<T>(call, i).get());
  }
  std::optional<T> value;
  std::optional<T> get() const { return value; }
};

template <>
struct Argument<at::OptionalIntArrayRef> {
  Argument(const Call& call, size_t i) {
    if (!call.is_none(i)) value = call.ints(i);
  }
  std::optional<std::vector<int64_t>> value;
  at::OptionalIntArrayRef get() const { return value ? at::OptionalIntArrayRef(*value) : at::OptionalIntArrayRef(); }
};

template <>
struct Argument<at::OptionalTensorRef> {
  Argument(const Call& call, size_t i) : value(call.optional_tensor(i)) {}
  at::Tensor value;
  at::OptionalTensorRef get() const { return value.defined() ? at::OptionalTensorRef(value) : at::OptionalTensorRef(); }
};

template <>
struct Argument<at::OptionalScalarRef> {
  Argument(const Call& call, size_t i) {
    if (!call.is_none(i)) value = call.arg(i).toScalar();
  }
  std::optional<c10::Scalar> value;
  at::OptionalScalarRef get() const { return value ? at::OptionalScalarRef(*value) : at::OptionalScalarRef(); }
};

/// Where results go: new tensors; argument 0; or argument 0, which the meta function must not see because it would
/// compare its data pointer with the other arguments'.
enum class Target { New, Self, HiddenSelf };

/// Overrides the two output functions of a structured kernel. Their signature is taken from PyTorch's declaration: some
/// versions pass dimension names last.
template <class Meta, class Signature>
class OutputHook;

template <class Meta, class... Names>
class OutputHook<Meta, void (at::impl::MetaBase::*)(int64_t, at::IntArrayRef, at::IntArrayRef, at::TensorOptions,
                                                    Names...)> : public Meta {
 public:
  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options,
                          Names...) override {
    output(i, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options,
                              Names...) override {
    output(i, sizes, strides, options);
  }

 private:
  virtual void output(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options) = 0;
};

/// A structured kernel's frame whose outputs are fakes: new ones, or, in place, `self`.
template <class Meta>
class Structured final : public OutputHook<Meta, decltype(&at::impl::MetaBase::set_output_strided)> {
  static_assert(!std::is_base_of_v<at::TensorIteratorBase, Meta>, "needs data pointers: write an elementwise rule");

 public:
  Structured(Call& call, Target target) : call_(call) {
    if (target == Target::New) return;
    self_ = call.tensor(0);
    if (target == Target::Self) outputs_[0] = self_;
    if (target == Target::HiddenSelf) check_no_internal_overlap(self_);
  }

  void output(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options) override {
    count_ = std::max<size_t>(count_, i + 1);
    const c10::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
    if (self_.defined()) {
      TORCH_CHECK(self_.sizes() == sizes, "Bad in-place call: input tensor size ", self_.sizes(),
                  " and output tensor size ", sizes, " should match");
      TORCH_CHECK(self_.scalar_type() == dtype, "Bad in-place call: input tensor dtype ", self_.dtype(),
                  " and output tensor dtype ", options.dtype(), " should match");
      outputs_[i] = self_;
    } else if (strides.empty() && !sizes.empty()) {
      const at::MemoryFormat format = options.memory_format_opt().value_or(at::MemoryFormat::Contiguous);
      outputs_[i] = call_.empty(sizes, strides_in_format(sizes, format), dtype, options.device());
    } else {
      outputs_[i] = call_.empty(sizes, strides, dtype, options.device());
    }
  }

  const at::Tensor& maybe_get_output(int64_t i) override {
    return outputs_[i];  // some functions keep the reference across set_output
  }

  void add_results() {
    for (size_t i = 0; i < count_; ++i) call_.result(std::move(outputs_[i]));
  }

 private:
  Call& call_;
  at::Tensor self_;
  std::array<at::Tensor, 4> outputs_;
  size_t count_ = 0;
};

template <class Meta, class Base, typename Return, typename... Parameters, size_t... I>
void invoke_meta(Structured<Meta>& frame, Return (Base::*meta)(Parameters...), const Call& call,
                 std::index_sequence<I...>) {
  std::tuple<Argument<std::remove_cvref_t<Parameters>>...> arguments{
      Argument<std::remove_cvref_t<Parameters>>(call, I)...};
  (static_cast<Base&>(frame).*meta)(std::get<I>(arguments).get()...);
}

template <class Base, typename Return, typename... Parameters>
constexpr size_t parameter_count(Return (Base::*)(Parameters...)) {
  return sizeof...(Parameters);
}

/// True if another argument shares the storage of argument 0.
inline bool overlapping(const Call& call) {
  for (size_t i = 1; i < call.size(); ++i) {
    if (call.arg(i).isTensor() &&
        call.tensor(i).storage().unsafeGetStorageImpl() == call.tensor(0).storage().unsafeGetStorageImpl()) {
      return true;
    }
  }
  return false;
}

template <class Meta, Target target = Target::New>
bool structured(Call& call) {
  if (target == Target::HiddenSelf && overlapping(call)) return false;
  Structured<Meta> frame(call, target);
  invoke_meta(frame, &Meta::meta, call, std::make_index_sequence<parameter_count(&Meta::meta)>());
  frame.add_results();
  return true;
}

template <class Meta>
constexpr Rule structured_inplace = structured<Meta, Target::Self>;
template <class Meta>
constexpr Rule structured_scatter = structured<Meta, Target::HiddenSelf>;

/// `rule` for an operator whose kernel has the dtypes `accepted` only; it refuses `checked` with a RuntimeError and the
/// others with a NotImplementedError.
template <DtypeSet accepted, Rule rule, DtypeSet checked = kNone>
bool only(Call& call) {
  const c10::ScalarType dtype = call.tensor(0).scalar_type();
  if (class_of(dtype) == kNone || !rule(call)) return false;
  check_dtype(dtype, accepted, checked);
  return true;
}

/// `rule` where the kernel is known to have argument 0's dtype; declines elsewhere.
template <DtypeSet dtypes, Rule rule>
bool when(Call& call) {
  return (class_of(call.tensor(0).scalar_type()) & dtypes) && rule(call);
}

}  // namespace magneto::fake
