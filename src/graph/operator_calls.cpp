#include "graph/operator_calls.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>

#include "graph/aliases.h"
#include "graph/literal.h"
#include "graph/orphans.h"
#include "graph/results_of_call.h"
#include "graph/text.h"
#include "ops/operator.h"
#include "python/text.h"

namespace magneto::graph {
namespace {

const c10::Type& without_optional(const c10::Type& type) {
  const c10::Type* inner = &type;
  while (inner->kind() == c10::TypeKind::OptionalType) {
    inner = inner->castRaw<c10::OptionalType>()->getElementType().get();
  }
  return *inner;
}

/// A number of a schema that means a dtype, a layout or a memory format.
Ref named_number(int64_t number, const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::ScalarTypeType:
      return Ref::borrow(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(number))));
    case c10::TypeKind::LayoutType:
      return Ref::borrow(reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<at::Layout>(number))));
    case c10::TypeKind::MemoryFormatType:
      return Ref::borrow(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(number)));
    default:
      return checked(PyLong_FromLongLong(number));
  }
}

}  // namespace

Ref constant_object(const c10::IValue& value, const c10::Type& declared) {
  const c10::Type& type = without_optional(declared);
  if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) return Ref::borrow(Py_None);
  if (value.isBool()) return Ref::borrow(value.toBool() ? Py_True : Py_False);
  if (value.isInt()) return named_number(value.toInt(), type);
  if (value.isDouble()) return checked(PyFloat_FromDouble(value.toDouble()));
  if (value.isComplexDouble()) {
    return checked(PyComplex_FromDoubles(value.toComplexDouble().real(), value.toComplexDouble().imag()));
  }
  if (value.isString()) return text_object(value.toStringRef());
  if (value.isDevice()) return checked(THPDevice_New(value.toDevice()));
  if (value.isList()) {
    const auto items = value.toListRef();
    const c10::Type& element = *type.castRaw<c10::ListType>()->getElementType();
    Ref list = checked(PyList_New(static_cast<Py_ssize_t>(items.size())));
    for (size_t i = 0; i < items.size(); ++i) {
      PyList_SET_ITEM(list.get(), i, constant_object(items[i], element).release());
    }
    return list;
  }
  std::string text;
  print_literal(text, value, type);
  throw std::invalid_argument("no script can say " + text);
}

namespace {

PyArg argument_of(const AtenArg& arg, const c10::Type& type) {
  PyArg made;
  const auto tensor = [](ValueId id) {
    PyArg item;
    item.object = Ref::borrow(Py_None);
    if (id == kNoValue) return item;
    item.kind = PyArg::Kind::Value;
    item.value = id;
    return item;
  };
  if (const auto* constant = std::get_if<c10::IValue>(&arg)) {
    made.object = constant_object(*constant, type);
  } else if (const auto* id = std::get_if<ValueId>(&arg)) {
    made = tensor(*id);
    if (*id != kNoValue && !is_tensor_type(type)) made.kind = PyArg::Kind::Number;
  } else if (const auto* ids = std::get_if<std::vector<ValueId>>(&arg)) {
    made.kind = PyArg::Kind::List;
    for (const ValueId item : *ids) made.items.push_back(tensor(item));
  } else {
    const auto& sizes = std::get<SizeArg>(arg);
    for (const shapes::Expr size : sizes.sizes) {
      PyArg item;
      item.kind = PyArg::Kind::Size;
      item.size = size;
      made.items.push_back(item);
    }
    if (!sizes.is_list) return made.items.front();
    made.kind = PyArg::Kind::List;
  }
  return made;
}

/// The overload that a program calls where we record the one for numbers: `x * 3` is mul.Tensor.
c10::OperatorHandle as_called(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (!ops::operator_of(op).is(ops::wraps_number)) return op;
  const std::string overload = name.overload_name == "Scalar"        ? "Tensor"
                               : name.overload_name == "Scalar_mode" ? "Tensor_mode"
                                                                     : name.overload_name;
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), overload.c_str());
}

TorchNode call_of(const AtenNode& node) {
  if (has_regions(node)) return operator_call(node);
  TorchNode call;
  const c10::OperatorHandle op = as_called(node.op);
  call.target = overload_object(op);
  const auto& arguments = op.schema().arguments();
  size_t positional = 0;
  while (positional < arguments.size() && !arguments[positional].kwarg_only()) ++positional;
  // Defaults at the end need not be said.
  const auto is_default = [&](size_t i) {
    const auto* constant = std::get_if<c10::IValue>(&node.args[i]);
    const auto& standard = arguments[i].default_value();
    return constant && standard && !standard->isTensor() && !constant->isTensor() && *constant == *standard;
  };
  while (positional > 0 && is_default(positional - 1)) --positional;
  for (size_t i = 0; i < node.args.size(); ++i) {
    if (i >= positional && is_default(i)) continue;
    PyArg arg = argument_of(node.args[i], *arguments[i].real_type());
    if (i < positional) {
      call.args.push_back(std::move(arg));
    } else {
      call.kwargs.emplace_back(arguments[i].name(), std::move(arg));
    }
  }
  call.results = results_of(node);
  return call;
}

}  // namespace

Graph with_operators_as_calls(Graph graph) {
  std::vector<TorchNode> calls;
  for (AtenNode& node : graph.aten_nodes) {
    TorchNode call = call_of(node);
    if (node.torch_node >= 0) {
      const TorchNode& origin = graph.torch_nodes[node.torch_node];
      call.file = origin.file;
      call.line = origin.line;
      call.function = origin.function;
      call.called_from = origin.called_from;
      call.origin = origin.target;
      call.origin_index = node.torch_node;
    }
    node.torch_node = static_cast<int32_t>(calls.size());
    calls.push_back(std::move(call));
  }
  graph.torch_nodes = std::move(calls);
  return graph;
}

}  // namespace magneto::graph
