#include "runtime/program/number_calls.h"

#include <cmath>

namespace magneto::runtime {
namespace {

/// A number of a step: a constant, or the element of a tensor.
c10::Scalar number_at(const Argument& argument, const RunTensors& registers) {
  if (argument.kind == Argument::Kind::Constant) return argument.constant.toScalar();
  const at::Tensor& tensor = registers[argument.tensor];
  if (tensor.is_cpu() && tensor.scalar_type() == c10::kDouble) {
    return *static_cast<const double*>(tensor.const_data_ptr());
  }
  if (tensor.is_cpu() && tensor.scalar_type() == c10::kFloat)
    return *static_cast<const float*>(tensor.const_data_ptr());
  return tensor.item();
}

void set(const at::Tensor& out, double value) {
  *static_cast<double*>(out.mutable_data_ptr()) = value;
  out.unsafeGetTensorImpl()->set_wrapped_number(true);
}

}  // namespace

std::optional<double> float_result(guards::Arithmetic operation, const c10::Scalar& left, const c10::Scalar& right) {
  using guards::Arithmetic;
  const auto is_known = [](const c10::Scalar& number) {
    return number.isFloatingPoint() || number.isIntegral(/*includeBool=*/false);
  };
  if (!is_known(left) || !is_known(right)) return std::nullopt;
  if (!left.isFloatingPoint() && !right.isFloatingPoint()) return std::nullopt;
  const double a = left.toDouble(), b = right.toDouble();
  switch (operation) {
    case Arithmetic::Add:
      return a + b;
    case Arithmetic::Subtract:
      return a - b;
    case Arithmetic::Multiply:
      return a * b;
    case Arithmetic::TrueDivide:
      if (b == 0) return std::nullopt;
      return a / b;
    case Arithmetic::Power: {
      if (!(a > 0) || !std::isfinite(a) || !std::isfinite(b)) return std::nullopt;
      const double result = std::pow(a, b);
      if (!std::isfinite(result)) return std::nullopt;
      return result;
    }
    default:
      return std::nullopt;
  }
}

void item_into(const Step& step, c10::DispatchKeySet /*keys*/, const RunTensors& registers, at::Tensor& out) {
  set(out, number_at(step.arguments[0], registers).toDouble());
}

void arithmetic_into(const Step& step, c10::DispatchKeySet /*keys*/, const RunTensors& registers, at::Tensor& out) {
  const c10::Scalar left = number_at(step.arguments[0], registers), right = number_at(step.arguments[1], registers);
  const int64_t operation = step.arguments[2].constant.toInt();
  if (const std::optional<double> found = float_result(static_cast<guards::Arithmetic>(operation), left, right)) {
    return set(out, *found);
  }
  torch::jit::Stack stack{left, right, operation};
  step.op.callBoxed(&stack);
  set(out, *stack[0].toTensor().const_data_ptr<double>());
}

}  // namespace magneto::runtime
