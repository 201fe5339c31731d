#include "fake/record.h"

#include <algorithm>

#include "fake/size_node.h"
#include "graph/symbols.h"
#include "ops/operator.h"

namespace magneto::fake {

namespace {

bool is_real(const at::Tensor& tensor) {
  return tensor.defined() && !as_fake(tensor) && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

/// The number in a wrapped-number tensor made from a Python or C++ number; nothing for other dtypes.
std::optional<c10::Scalar> wrapped_number(const at::Tensor& tensor) {
  if (as_fake(tensor) || tensor.dim() != 0 || !tensor.is_cpu() || !tensor.unsafeGetTensorImpl()->is_wrapped_number())
    return std::nullopt;
  switch (tensor.scalar_type()) {
    case c10::kDouble:
      return c10::Scalar(*tensor.const_data_ptr<double>());
    case c10::kLong:
      return c10::Scalar(*tensor.const_data_ptr<int64_t>());
    case c10::kBool:
      return c10::Scalar(*tensor.const_data_ptr<bool>());
    case c10::kComplexDouble:
      return c10::Scalar(*tensor.const_data_ptr<c10::complex<double>>());
    default:
      return std::nullopt;
  }
}

/// The value of an operand; a wrapped number that can't be recorded as a number becomes a constant.
graph::ValueId operand(Session& session, const at::Tensor& tensor) {
  if (!tensor.defined()) return graph::kNoValue;
  if (FakeImpl* fake = as_fake(tensor)) {
    const graph::ValueId value = session.impl().value_of(*fake);
    if (session.operands) session.operands->emplace(value, tensor);
    return value;
  }
  return session.impl().value_of(*as_fake(session.make_constant(tensor)));
}

/// Sizes; a constant, where they are plain numbers after all.
graph::AtenArg size_arg(Session& session, const c10::IValue& value) {
  graph::SizeArg sizes{.is_list = value.isList()};
  const auto add = [&](const c10::IValue& item) {
    sizes.sizes.push_back(session.impl().state->sizes.simplified(expr_of(item.toSymInt())));
  };
  if (sizes.is_list) {
    for (const c10::IValue& item : value.toListRef()) add(item);
  } else {
    add(value);
  }
  if (!std::ranges::all_of(sizes.sizes, [](shapes::Expr size) { return size.is_constant(); })) return sizes;
  std::vector<int64_t> numbers;
  for (const shapes::Expr size : sizes.sizes) numbers.push_back(size.number());
  return sizes.is_list ? c10::IValue(std::move(numbers)) : c10::IValue(numbers[0]);
}

graph::AtenArg to_arg(Session& session, const c10::IValue& value) {
  if (value.isTensor()) return operand(session, value.toTensor());
  if (value.isSymFloat()) {
    const at::Tensor holder = holder_of(value.toSymFloat());
    if (holder.defined()) return operand(session, holder);
    return c10::IValue(value.toSymFloat().guard_float(__FILE__, __LINE__));
  }
  if (value.isSymInt()) return size_arg(session, value);
  if (!value.isList()) return value;
  if (value.isTensorList()) {
    std::vector<graph::ValueId> ids;
    const auto list = value.toTensorList();
    ids.reserve(list.size());
    for (const at::Tensor& tensor : list) ids.push_back(operand(session, tensor));
    return ids;
  }
  if (value.isOptionalTensorList()) {
    std::vector<graph::ValueId> ids;
    for (const c10::IValue& item : value.toListRef()) {
      ids.push_back(item.isNone() ? graph::kNoValue : operand(session, item.toTensor()));
    }
    return ids;
  }
  if (value.isIntList() || value.isDoubleList() || value.isBoolList()) return value;
  const auto items = value.toListRef();
  if (std::ranges::any_of(items, [](const c10::IValue& item) { return item.isSymInt(); })) {
    return size_arg(session, value);
  }
  return value;
}

void add_result(Session& session, const at::Tensor& tensor, int32_t producer, std::vector<graph::ValueId>& results) {
  if (!tensor.defined()) {
    results.push_back(graph::kNoValue);
    return;
  }
  FakeImpl* fake = as_fake(tensor);
  TORCH_CHECK(fake, "magneto: a rule gave a real tensor as its result");
  results.push_back(fake->identity() ? session.impl().value_of(*fake) : session.impl().add_result(*fake, producer));
}

/// A tensor that the torch call itself has made, whose sizes it changes in place: nobody else has it, so that the graph
/// may have a view for it. (An operator of the backward may then save it.)
FakeImpl* changed_inside(Session& session, const OperatorFacts& facts, const graph::AtenNode& node,
                         std::span<const c10::IValue> args) {
  FakeImpl* fake = facts.view_operator ? as_fake(args[0].toTensor()) : nullptr;
  if (!fake || !fake->identity() || !session.impl().was_changed(*fake)) return nullptr;
  const graph::Graph& graph = session.impl().graph;
  const graph::Value& value = graph.values[session.impl().value_of(*fake)];
  const bool made_here =
      value.kind == graph::ValueKind::Result && graph.aten_nodes[value.producer].torch_node == session.torch_node;
  if (!made_here) return nullptr;
  if (!ops::operator_of(node.op).is(ops::restrides)) return fake;
  // Pooling of channels-last images ends with this. Where no backward saves it, it stays a write, which counts
  // versions.
  const bool fits = fake->requires_grad() && args[3].isNone() &&
                    graph::lies_so(value.meta, graph::exprs_of(node.args[1]), graph::exprs_of(node.args[2]));
  return fits ? fake : nullptr;
}

}  // namespace

void replace_real_tensors(Session& session, std::span<c10::IValue> args) {
  for (c10::IValue& arg : args) {
    if (arg.isTensor()) {
      if (is_real(arg.toTensor())) arg = session.make_constant(arg.toTensor());
    } else if (arg.isTensorList()) {
      c10::List<at::Tensor> list = arg.toTensorList();
      for (size_t i = 0; i < list.size(); ++i) {
        if (const at::Tensor& tensor = list.get(i); is_real(tensor)) list.set(i, session.make_constant(tensor));
      }
    } else if (arg.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list = arg.toOptionalTensorList();
      for (size_t i = 0; i < list.size(); ++i) {
        const std::optional<at::Tensor> tensor = list.get(i);
        if (tensor && is_real(*tensor)) list.set(i, session.make_constant(*tensor));
      }
    }
  }
}

void record(Session& session, const c10::OperatorHandle& op, const OperatorFacts& facts,
            std::span<const c10::IValue> args, std::span<const c10::IValue> results) {
  graph::AtenNode node{.op = op, .torch_node = session.torch_node};
  node.args.reserve(args.size());
  for (const c10::IValue& arg : args) {
    // The second operand is the one that scalar overloads take as a number.
    if (facts.scalar_overload && node.args.size() == 1) {
      if (std::optional<c10::Scalar> number = wrapped_number(arg.toTensor())) {
        node.op = *facts.scalar_overload;
        node.args.emplace_back(c10::IValue(*number));
        continue;
      }
    }
    node.args.push_back(to_arg(session, arg));
  }
  const int32_t producer = static_cast<int32_t>(session.impl().graph.aten_nodes.size());
  if (FakeImpl* changed = changed_inside(session, facts, node, args)) {
    node.op = *facts.view_operator;
    node.args.resize(node.op.schema().arguments().size());
    node.results.push_back(session.impl().changed_as_view(*changed, producer));
    session.impl().graph.aten_nodes.push_back(std::move(node));
    return;
  }
  for (const c10::IValue& result : results) {
    if (result.isTensor()) {
      add_result(session, result.toTensor(), producer, node.results);
    } else if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) add_result(session, tensor, producer, node.results);
    }
  }
  session.impl().graph.aten_nodes.push_back(std::move(node));
}

}  // namespace magneto::fake
