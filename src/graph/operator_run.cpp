#include "graph/operator_run.h"

#include <ATen/core/List.h>
#include <ATen/core/stack.h>

#include <stdexcept>

#include "graph/literal.h"
#include "graph/results_of_call.h"

namespace magneto::graph {

const at::Tensor& OperatorRun::tensor(ValueId id) {
  at::Tensor& tensor = tensors_[id];
  if (!tensor.defined() && graph_.values[id].kind == ValueKind::Constant) {
    tensor = stand_ins_.constant(graph_.values[id].constant);
  }
  return tensor;
}

c10::IValue OperatorRun::argument(const AtenNode& node, size_t i) {
  const AtenArg& arg = node.args[i];
  const c10::TypePtr& type = node.op.schema().arguments()[i].type();
  if (const auto* constant = std::get_if<c10::IValue>(&arg)) return *constant;
  if (const auto* id = std::get_if<ValueId>(&arg)) {
    if (*id == kNoValue) return {};
    return is_tensor_type(*type) ? c10::IValue(tensor(*id)) : stand_ins_.number(tensor(*id));
  }
  if (const auto* sizes = std::get_if<SizeArg>(&arg)) {
    if (!sizes->is_list) return stand_ins_.size(sizes->sizes[0]);
    std::vector<c10::SymInt> list;
    for (const shapes::Expr size : sizes->sizes) list.push_back(stand_ins_.size(size));
    return c10::SymIntArrayRef(list);
  }
  const auto* ids = std::get_if<std::vector<ValueId>>(&arg);
  if (!ids) throw std::invalid_argument("a branch");
  const c10::Type& element = *type->castRaw<c10::ListType>()->getElementType();
  if (element.kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> list;
    for (const ValueId id : *ids) list.push_back(id == kNoValue ? std::nullopt : std::optional(tensor(id)));
    return list;
  }
  c10::List<at::Tensor> list;
  for (const ValueId id : *ids) list.push_back(tensor(id));
  return list;
}

void OperatorRun::call(const AtenNode& node) {
  torch::jit::Stack stack;
  for (size_t i = 0; i < node.args.size(); ++i) stack.push_back(argument(node, i));
  node.op.callBoxed(stack);
  size_t next = 0;
  for_each_tensor(stack, [&](const at::Tensor& tensor) {
    const ValueId id = node.results.at(next++);
    if (id != kNoValue) tensors_[id] = tensor;
  });
}

std::vector<at::Tensor> OperatorRun::run(const std::vector<at::Tensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) tensors_[graph_.inputs[i]] = inputs[i];
  for (const AtenNode& node : graph_.aten_nodes) call(node);
  std::vector<at::Tensor> outputs;
  for (const ValueId id : graph_.outputs) outputs.push_back(tensor(id));
  return outputs;
}

}  // namespace magneto::graph
