#include "capture/numbers/packed_batches.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "capture/capture.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/torch/tensor_map.h"
#include "capture/world/modules.h"
#include "graph/aliases.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

PyObject* read_first(PyObject*, PyObject* tensor) {
  const at::Tensor& sizes = unpack_tensor(tensor);
  if (sizes.numel() == 0) return PyErr_Format(PyExc_ValueError, "no number");
  return PyLong_FromLongLong(*sizes.const_data_ptr<int64_t>());
}

PyObject* first_reader() {
  static PyMethodDef method = {"first_of", &read_first, METH_O, nullptr};
  static PyObject* const function = checked(PyCFunction_New(&method, nullptr)).release();
  return function;
}

/// The number of sequences whose lengths an operator of the graph was given.
Ref of_operator(Capture& capture, const graph::Value& value) {
  const graph::AtenNode& node = capture.graph.aten_nodes[value.producer];
  if (node.op.operator_name().name != "magneto::batch_sizes") return {};
  const graph::TensorMeta& lengths = capture.graph.values[std::get<graph::ValueId>(node.args[0])].meta;
  return lengths.symbolic ? capture.symbols.size_number(lengths.symbolic->sizes[0])
                          : checked(PyLong_FromLongLong(lengths.sizes[0]));
}

/// Guards have looked at dtype and device.
Ref of_input(Capture& capture, graph::ValueId id) {
  const auto input = capture.tensors.inputs.find(id);
  if (input == capture.tensors.inputs.end() || input->second.number) return {};
  const at::Tensor& real = unpack_tensor(input->second.real.get());
  if (real.layout() != c10::kStrided || real.numel() == 0) return {};
  const auto shares_memory = [&](const auto& other) {
    const at::Tensor& tensor = unpack_tensor(other.second.real.get());
    return other.first != id && tensor.has_storage() && tensor.storage().is_alias_of(real.storage());
  };
  if (std::ranges::any_of(capture.tensors.inputs, shares_memory)) return {};
  const Ref now = checked(read_first(nullptr, input->second.real.get()));
  return capture.numbers.wrap_scalar(now.get(), capture.sources.call(first_reader(), input->second.source, nullptr));
}

}  // namespace

Ref packed_batch(Capture& capture, PyObject* tensor, PyObject* key) {
  if (!capture.frame || !is_fake_tensor(tensor) || !PyLong_CheckExact(key) || PyObject_IsTrue(key) != 0) return {};
  const std::string_view module = module_of(capture.frame->globals);
  if (module != "torch.nn.modules.rnn" && module != "magneto._recurrent") return {};
  const at::Tensor& sizes = unpack_tensor(tensor);
  if (sizes.dim() != 1 || sizes.scalar_type() != at::kLong || !sizes.device().is_cpu()) return {};
  const graph::ValueId id = capture.session->value_of(sizes);
  if (graph::Aliases(capture.graph).written(id)) return {};
  const graph::Value& value = capture.graph.values[id];
  return value.kind == graph::ValueKind::Result ? of_operator(capture, value) : of_input(capture, id);
}

}  // namespace magneto::capture
