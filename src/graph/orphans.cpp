#include "graph/orphans.h"

#include <algorithm>

#include "graph/aliases.h"
#include "graph/results_of_call.h"

namespace magneto::graph {

namespace {

Ref attribute_of_torch(std::initializer_list<std::string> path) {
  Ref found = checked(PyImport_ImportModule("torch"));
  for (const std::string& part : path) found = checked(PyObject_GetAttrString(found.get(), part.c_str()));
  return found;
}

/// The function that runs regions: PyTorch's, or ours, where regions have another form than that one wants (a condition
/// that gives no tuple, sizes behind what is carried).
Ref higher_order_object(const std::string& name) {
  if (name == "cond") return attribute_of_torch({"ops", "higher_order", name});
  const Ref module = checked(PyImport_ImportModule("magneto._control_flow"));
  return checked(PyObject_GetAttrString(module.get(), ("run_" + name).c_str()));
}

}  // namespace

Ref overload_object(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  const std::string& overload = op.operator_name().overload_name;
  const size_t colons = name.find("::");
  return attribute_of_torch(
      {"ops", name.substr(0, colons), name.substr(colons + 2), overload.empty() ? "default" : overload});
}

namespace {

PyArg constant(Ref object) {
  PyArg arg;
  arg.object = std::move(object);
  return arg;
}

PyArg value_arg(ValueId id) {
  if (id == kNoValue) return constant(Ref::borrow(Py_None));
  PyArg arg;
  arg.kind = PyArg::Kind::Value;
  arg.value = id;
  return arg;
}

/// An operand as the Python binding of its operator takes it: enumerations are numbers there, devices text.
PyArg python_arg(const c10::IValue& value) {
  if (value.isNone()) return constant(Ref::borrow(Py_None));
  if (value.isBool()) return constant(Ref::borrow(value.toBool() ? Py_True : Py_False));
  if (value.isInt()) return constant(checked(PyLong_FromLongLong(value.toInt())));
  if (value.isDouble()) return constant(checked(PyFloat_FromDouble(value.toDouble())));
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return constant(checked(PyComplex_FromDoubles(number.real(), number.imag())));
  }
  if (value.isString()) return constant(checked(PyUnicode_FromString(value.toStringRef().c_str())));
  if (value.isDevice()) return constant(checked(PyUnicode_FromString(value.toDevice().str().c_str())));
  if (value.isList()) {
    PyArg arg;
    arg.kind = PyArg::Kind::List;
    for (const c10::IValue& item : value.toListRef()) arg.items.push_back(python_arg(item));
    return arg;
  }
  throw std::runtime_error("an operand of type " + value.tagKind() + " has no Python form");
}

PyArg python_arg(const SizeArg& value) {
  PyArg arg;
  for (const shapes::Expr size : value.sizes) {
    PyArg item;
    item.kind = PyArg::Kind::Size;
    item.size = size;
    arg.items.push_back(std::move(item));
  }
  if (!value.is_list) return arg.items[0];
  arg.kind = PyArg::Kind::List;
  return arg;
}

}  // namespace

TorchNode operator_call(const AtenNode& op) {
  TorchNode node;
  const bool with_regions = has_regions(op);
  const std::string& name = op.op.operator_name().name;
  node.target = with_regions ? higher_order_object(name.substr(name.find("::") + 2)) : overload_object(op.op);
  const auto& schema = op.op.schema().arguments();
  for (size_t i = 0; i < op.args.size(); ++i) {
    PyArg arg;
    if (const auto* one = std::get_if<ValueId>(&op.args[i])) {
      arg = value_arg(*one);
    } else if (const auto* many = std::get_if<std::vector<ValueId>>(&op.args[i])) {
      arg.kind = with_regions ? PyArg::Kind::Tuple : PyArg::Kind::List;
      for (ValueId id : *many) arg.items.push_back(value_arg(id));
    } else if (const auto* region = std::get_if<std::shared_ptr<const Region>>(&op.args[i])) {
      arg.kind = PyArg::Kind::Region;
      arg.region = *region;
    } else {
      arg = std::holds_alternative<SizeArg>(op.args[i]) ? python_arg(std::get<SizeArg>(op.args[i]))
                                                        : python_arg(std::get<c10::IValue>(op.args[i]));
    }
    if (schema[i].kwarg_only()) {
      node.kwargs.emplace_back(schema[i].name(), std::move(arg));
    } else {
      node.args.push_back(std::move(arg));
    }
  }
  for (TorchResult& result : results_of(op)) {
    if (result.value != kNoValue) node.results.push_back(std::move(result));
  }
  return node;
}

void adopt_orphans(Graph& graph) {
  const auto orphan = [](const AtenNode& op) { return op.torch_node < 0; };
  if (std::none_of(graph.aten_nodes.begin(), graph.aten_nodes.end(), orphan)) return;
  std::vector<TorchNode> old = std::move(graph.torch_nodes);
  std::vector<TorchNode> nodes;
  size_t taken = 0;
  int32_t shift = 0;
  for (AtenNode& op : graph.aten_nodes) {
    if (orphan(op)) {
      op.torch_node = static_cast<int32_t>(nodes.size());
      nodes.push_back(operator_call(op));
      ++shift;
      continue;
    }
    while (taken <= static_cast<size_t>(op.torch_node)) nodes.push_back(std::move(old[taken++]));
    op.torch_node += shift;
  }
  while (taken < old.size()) nodes.push_back(std::move(old[taken++]));
  graph.torch_nodes = std::move(nodes);
}

}  // namespace magneto::graph
