// Operators that write into planned memory: their out-variants, called with C++ arguments; and those of
// placed_results.h and random_draws.h.
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/mm_ops.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "ops/operator.h"
#include "runtime/program/number_calls.h"
#include "runtime/program/placed_results.h"
#include "runtime/program/random_draws.h"
#include "runtime/program/typed_argument.h"

namespace magneto::runtime {
namespace {

template <typename Operator, typename Signature>
struct Out;

/// All but the last argument, which is the result, off the operator's own schema signature.
template <typename Operator, typename... Types>
struct Out<Operator, at::Tensor&(Types...)> {
  static void call(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers, at::Tensor& out) {
    using All = std::tuple<std::remove_cvref_t<Types>...>;
    [&]<size_t... I>(std::index_sequence<I...>) {
      Operator::redispatch(keys, argument<std::tuple_element_t<I, All>>(step, registers, I)..., out);
    }(std::make_index_sequence<sizeof...(Types) - 1>{});
  }
};

template <typename Operator>
constexpr OutCall out_call = &Out<Operator, typename Operator::schema>::call;

}  // namespace

OutCall find_out_call(const Step& step, c10::ScalarType dtype) {
  using Rows = std::unordered_map<c10::OperatorName, OutCall>;
  static const Rows rows = {
#define ROW_call_out(op, out) {ops::parsed(op), out_call<at::_ops::out>},
#define ROW_call_both(op, call, out) {ops::parsed(op), out_call<at::_ops::out>},
#define ROW_call_placed(op, function) {ops::parsed(op), &function},
#include "ops/rows.def"
  };
  static const Rows numbers = {
#define ROW_call_number(op, function) {ops::parsed(op), &function},
#include "ops/rows.def"
  };
  for (const Argument& argument : step.arguments) {
    if (argument.kind == Argument::Kind::Size) return nullptr;
  }
  if (const auto row = numbers.find(step.op.operator_name()); row != numbers.end()) {
    return dtype == c10::kDouble ? row->second : nullptr;  // an integer may be a size
  }
  if (step.mode != CallMode::Direct) return nullptr;
  if (std::ranges::any_of(step.arguments, &Argument::as_number)) return nullptr;
  const auto row = rows.find(step.op.operator_name());
  return row == rows.end() ? nullptr : row->second;
}

}  // namespace magneto::runtime
