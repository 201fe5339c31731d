// Rules made from PyTorch's own structured meta functions.
//
// `at::meta::structured_topk::meta` and its like check the arguments and name the results' geometry, reading nothing but
// metadata: on fakes they are exact, messages included. `structured<at::meta::structured_topk>` is such a rule; it takes the
// types of the arguments from the function's signature. Not for operators built on TensorIterator, whose meta functions
// want data pointers (see elementwise.h).
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/IListRef.h>

#include <optional>
#include <tuple>
#include <type_traits>

#include "fake/elementwise.h"

namespace magneto::fake {

/// Argument `i` of a call as the type T of a meta function's parameter; owns what the parameter only refers to.
template <typename T>
struct Argument;

#define MAGNETO_ARGUMENT(Type, Stored, initial)                       \
  template <>                                                         \
  struct Argument<Type> {                                             \
    Argument(const Call& call, size_t i) : value(initial) {}          \
    Stored value;                                                     \
    Type get() const { return value; }                                \
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

/// A structured kernel's frame whose outputs are fakes: new ones, or, in place, `self`.
template <class Meta>
class Structured final : public Meta {
  static_assert(!std::is_base_of_v<at::TensorIteratorBase, Meta>, "needs data pointers: write an elementwise rule");

 public:
  explicit Structured(Call& call, bool inplace) : call_(call) {
    if (inplace) self_ = call.tensor(0);
  }

  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(i, sizes, strides, options);
  }

  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    if (outputs_.size() <= static_cast<size_t>(i)) outputs_.resize(i + 1);
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
    if (self_.defined()) return self_;
    // bmm and index_add take the reference before they set the output.
    if (outputs_.size() <= static_cast<size_t>(i)) outputs_.resize(i + 1);
    return outputs_[i];
  }

  void add_results() {
    for (at::Tensor& output : outputs_) call_.result(std::move(output));
  }

 private:
  Call& call_;
  at::Tensor self_;
  c10::SmallVector<at::Tensor, 2> outputs_;
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

template <class Meta, bool inplace = false>
bool structured(Call& call) {
  Structured<Meta> frame(call, inplace);
  invoke_meta(frame, &Meta::meta, call, std::make_index_sequence<parameter_count(&Meta::meta)>());
  frame.add_results();
  return true;
}

template <class Meta>
constexpr Rule structured_inplace = structured<Meta, true>;

/// `rule` where the kernel is known to have argument 0's dtype; declines elsewhere.
template <DtypeSet dtypes, Rule rule>
bool when(Call& call) {
  return (class_of(call.tensor(0).scalar_type()) & dtypes) && rule(call);
}

}  // namespace magneto::fake
