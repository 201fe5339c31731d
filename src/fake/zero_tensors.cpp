#include "fake/zero_tensors.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/List.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <span>

#include "fake/fake_impl.h"
#include "ops/kinds.h"

namespace magneto::fake {

namespace {

using torch::jit::Stack;

bool is_zeros(const at::Tensor& tensor) {
  FakeImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr;
  return fake && std::ranges::any_of(fake->state().zeros, [&](const c10::Storage& storage) {
           return storage.unsafeGetStorageImpl() == fake->unsafe_storage().unsafeGetStorageImpl();
         });
}

bool is_zeros(const c10::IValue& arg) {
  if (arg.isTensor()) return is_zeros(arg.toTensor());
  if (arg.isTensorList())
    return std::ranges::any_of(arg.toTensorVector(), [](const at::Tensor& t) { return is_zeros(t); });
  return false;
}

/// With memory.
at::Tensor filled(const at::Tensor& tensor) {
  return is_zeros(tensor) ? at::zeros({}, tensor.options()).expand_symint(tensor.sym_sizes()) : tensor;
}

c10::IValue filled(const c10::IValue& arg) {
  if (!is_zeros(arg)) return arg;
  if (arg.isTensor()) return filled(arg.toTensor());
  c10::List<at::Tensor> list;
  for (const at::Tensor& item : arg.toTensorVector()) list.push_back(filled(item));
  return list;
}

c10::ScalarType dtype_of(const at::Tensor& a, const at::Tensor& b) {
  return at::native::result_type(at::native::update_result_type_state(b, at::native::update_result_type_state(a, {})));
}

/// The result of arithmetic, as far as it does not depend on values.
struct Outcome {
  Outcome(const at::Tensor& a, const at::Tensor& b)
      : sizes(at::infer_size_symdimvector(a.sym_sizes(), b.sym_sizes())),
        options(a.options().device(a.dim() > 0 ? a.device() : b.device()).dtype(dtype_of(a, b))) {}

  at::Tensor zeros() const { return at::_efficientzerotensor_symint(sizes, options); }
  at::Tensor full(double value) const { return at::full_symint(sizes, value, options); }
  at::Tensor like(const at::Tensor& tensor) const { return at::_to_copy(tensor.expand_symint(sizes), options); }

  at::SymDimVector sizes;
  at::TensorOptions options;
};

at::Tensor sum(const at::Tensor& a, const at::Tensor& b, const at::Scalar& factor) {
  const Outcome outcome(a, b);
  if (!is_zeros(a)) return outcome.like(a);
  if (is_zeros(b)) return outcome.zeros();
  at::Tensor result = outcome.like(b);
  return factor.equal(1) ? result : result.mul(factor);
}

at::Tensor quotient(const at::Tensor& a, const at::Tensor& b) {
  Outcome outcome(a, b);
  if (c10::isIntegralType(c10::typeMetaToScalarType(outcome.options.dtype()), /*includeBool=*/true)) {
    outcome.options = outcome.options.dtype(c10::get_default_dtype());
  }
  if (!is_zeros(b)) return outcome.zeros();
  return outcome.full(is_zeros(a) ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity());
}

/// What is known of the result of an operator that has a rule of its own for such tensors.
std::optional<at::Tensor> arithmetic(const ops::Operator& op, std::span<const c10::IValue> args) {
  if (ops::is_kind(op, ops::is_sum)) return sum(args[0].toTensor(), args[1].toTensor(), args[2].toScalar());
  if (ops::is_kind(op, ops::is_difference)) return sum(args[0].toTensor(), args[1].toTensor(), -args[2].toScalar());
  if (ops::is_kind(op, ops::is_quotient)) return quotient(args[0].toTensor(), args[1].toTensor());
  if (ops::is_kind(op, ops::is_product)) return Outcome(args[0].toTensor(), args[1].toTensor()).zeros();
  return {};
}

enum class Use { Reads, Views, Writes };

Use use_of(const c10::OperatorHandle& op, std::span<const c10::IValue> args) {
  const auto& schema = op.schema().arguments();
  Use use = Use::Reads;
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::AliasInfo* alias = schema[i].alias_info();
    if (!alias || !is_zeros(args[i])) continue;
    if (alias->isWrite()) return Use::Writes;
    use = Use::Views;
  }
  return use;
}

}  // namespace

void mark_as_zeros(const at::Tensor& fake) { as_fake(fake)->state().zeros.push_back(fake.storage()); }

bool call_on_zeros(Session& session, const c10::OperatorHandle& op, Stack* stack) {
  if (session.impl().state->zeros.empty()) return false;
  const size_t count = op.schema().arguments().size();
  const std::span<c10::IValue> args(stack->data() + stack->size() - count, count);
  if (std::ranges::none_of(args, [](const c10::IValue& arg) { return is_zeros(arg); })) return false;
  const Use use = use_of(op, args);
  if (use == Use::Views) return false;
  TORCH_CHECK(use == Use::Reads,
              "ZeroTensors are immutable. Please use the materialized zero tensor obtained using .clone() if you want "
              "a mutable tensor.");
  if (std::optional<at::Tensor> result = arithmetic(ops::operator_of(op), args)) {
    torch::jit::drop(*stack, count);
    stack->emplace_back(std::move(*result));
  } else {
    for (c10::IValue& arg : args) arg = filled(arg);
    op.callBoxed(stack);
  }
  return true;
}

}  // namespace magneto::fake
