#include "capture/numbers/counters.h"

#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/add_ops.h>

#include <algorithm>
#include <optional>

#include "capture/capture.h"
#include "capture/numbers/numbers.h"
#include "capture/torch/tensor_map.h"
#include "capture/world/world.h"
#include "graph/aliases.h"
#include "ops/operator.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// (tensor) or (tensor, number): the float in it, after the number has been added as `add_` does.
PyObject* read_float(PyObject*, PyObject* const* args, Py_ssize_t count) {
  const at::Tensor& tensor = unpack_tensor(args[0]);
  if (tensor.numel() != 1) return PyErr_Format(PyExc_ValueError, "not one float");
  const bool single = tensor.scalar_type() == at::kFloat;
  double value = single ? *tensor.const_data_ptr<float>() : *tensor.const_data_ptr<double>();
  if (count == 1) return PyFloat_FromDouble(value);
  const double added = PyFloat_AsDouble(args[1]);
  // A sum of floats: doubles hold it with so many bits to spare that rounding twice changes nothing.
  value += single ? static_cast<float>(added) : added;
  return PyFloat_FromDouble(single ? static_cast<float>(value) : value);
}

PyObject* float_reader() {
  static PyMethodDef method = {"float_of", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&read_float)),
                               METH_FASTCALL, nullptr};
  static PyObject* const function = checked(PyCFunction_New(&method, nullptr)).release();
  return function;
}

/// What `read_float` reads, at each run: the guards have looked at dtype and device.
bool is_readable(const at::Tensor& real) {
  return real.device().is_cpu() && real.layout() == c10::kStrided && real.numel() == 1 && !real.is_neg() &&
         (real.scalar_type() == at::kFloat || real.scalar_type() == at::kDouble);
}

std::optional<double> constant_of(const graph::Graph& graph, const graph::AtenArg& arg) {
  if (const auto* id = std::get_if<graph::ValueId>(&arg)) {
    if (*id == graph::kNoValue || graph.values[*id].kind != graph::ValueKind::Constant) return {};
    const at::Tensor& value = graph.values[*id].constant;
    return value.numel() == 1 && !value.is_complex() ? std::optional(value.item().toDouble()) : std::nullopt;
  }
  const auto* value = std::get_if<c10::IValue>(&arg);
  if (!value || !value->isScalar() || value->isComplexDouble() || value->isSymInt() || value->isSymFloat()) return {};
  return value->toScalar().toDouble();
}

/// What the operator adds to each of its first operands in place. Nothing: another operator, or nobody knows.
std::optional<double> increment_of(const graph::Graph& graph, const graph::AtenNode& node) {
  const c10::OperatorName& op = node.op.operator_name();
  const auto is = [&](const char* name, const char* overload) {
    return op.name == name && op.overload_name == overload;
  };
  using namespace at::_ops;  // NOLINT(google-build-using-namespace)
  if (!is(add__Tensor::name, add__Tensor::overload_name) && !is(add__Scalar::name, add__Scalar::overload_name) &&
      !is(_foreach_add__Scalar::name, _foreach_add__Scalar::overload_name)) {
    return {};
  }
  if (node.args.size() > 2 && constant_of(graph, node.args[2]) != 1.0) return {};
  return constant_of(graph, node.args[1]);
}

struct Addition {
  bool known = true;  // nothing but that was done to the memory
  std::optional<double> number;
};

bool has_operand(const graph::AtenArg& arg, graph::ValueId id) {
  bool found = false;
  graph::for_each_tensor(arg, [&](graph::ValueId operand) { found |= operand == id; });
  return found;
}

/// What the graph has done so far to the memory of a value that is an input.
Addition addition_to(const graph::Graph& graph, graph::ValueId id) {
  Addition addition;
  for (const graph::AtenNode& node : graph.aten_nodes) {
    const auto& arguments = node.op.schema().arguments();
    for (size_t i = 0; i < node.args.size(); ++i) {
      if (!has_operand(node.args[i], id)) continue;
      if (graph::writes_argument(node, i)) {
        const auto number = i == 0 && !addition.number ? increment_of(graph, node) : std::nullopt;
        if (!number) return {.known = false};
        addition.number = number;
      } else if (arguments[i].alias_info() || ops::operator_of(node.op).is(ops::shares_memory)) {
        return {.known = false};  // a view, which may be written
      }
    }
  }
  return addition;
}

}  // namespace

Ref number_in_state(Capture& capture, const at::Tensor& fake) {
  const graph::ValueId id = capture.session->value_of(fake);
  const auto input = capture.tensors.inputs.find(id);
  if (input == capture.tensors.inputs.end() || input->second.number) return {};
  const at::Tensor& real = unpack_tensor(input->second.real.get());
  if (!is_readable(real)) return {};
  const auto shares_memory = [&](const auto& other) {
    const at::Tensor& tensor = unpack_tensor(other.second.real.get());
    return other.first != id && tensor.has_storage() && tensor.storage().is_alias_of(real.storage());
  };
  if (std::ranges::any_of(capture.tensors.inputs, shares_memory)) return {};
  const Addition addition = addition_to(capture.graph, id);
  if (!addition.known) return {};
  static PyObject* const one = PyFloat_FromDouble(1);  // what is read twice is one source
  const Ref number = !addition.number          ? Ref()
                     : *addition.number == 1.0 ? Ref::borrow(one)
                                               : checked(PyFloat_FromDouble(*addition.number));
  PyObject* args[] = {input->second.real.get(), number.get()};
  const Ref now = checked(read_float(nullptr, args, number ? 2 : 1));
  if (number) capture.world.keep(Ref::borrow(number.get()));
  const guards::Source* source = capture.sources.call(float_reader(), input->second.source,
                                                      number ? capture.sources.constant(number.get()) : nullptr);
  capture.guards.type(source, &PyFloat_Type);
  return capture.numbers.unknown_number(now.get(), source, /*changes=*/true);
}

}  // namespace magneto::capture
