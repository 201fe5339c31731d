// Typed calls for frequent operators: the backend kernel with C++ arguments, without boxing them on a stack (30 to 60
// ns an operator). Everything else goes boxed.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/tanh_ops.h>

#include <string>
#include <unordered_map>

#include "ops/operator.h"
#include "runtime/program/typed_argument.h"

namespace magneto::runtime {
namespace {

template <typename Operator, typename Signature>
struct Typed;

/// Reads the argument types off the operator's own schema signature.
template <typename Operator, typename... Types>
struct Typed<Operator, at::Tensor(Types...)> {
  static at::Tensor call(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return Operator::redispatch(keys, argument<std::remove_cvref_t<Types>>(step, registers, I)...);
    }(std::index_sequence_for<Types...>{});
  }
};

template <typename Operator>
constexpr TypedCall typed = &Typed<Operator, typename Operator::schema>::call;

const std::unordered_map<c10::OperatorName, TypedCall>& table() {
  using Rows = std::unordered_map<c10::OperatorName, TypedCall>;
  static const Rows rows = {
#define ROW_call_typed(op, call) {ops::parsed(op), typed<at::_ops::call>},
#define ROW_call_both(op, call, out) {ops::parsed(op), typed<at::_ops::call>},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace

TypedCall find_typed_call(const Step& step) {
  const auto row = table().find(step.op.operator_name());
  if (row == table().end()) return nullptr;
  // An undefined tensor, or a size that is no plain integer, is left to the boxed call.
  const auto& schema = step.op.schema().arguments();
  for (size_t i = 0; i < step.arguments.size(); ++i) {
    const bool tensor = schema[i].real_type()->kind() == c10::TypeKind::TensorType;
    if (tensor != (step.arguments[i].kind == Argument::Kind::Tensor)) return nullptr;
    if (step.arguments[i].constant.isSymInt() || step.arguments[i].kind == Argument::Kind::Size) return nullptr;
  }
  return row->second;
}

}  // namespace magneto::runtime
