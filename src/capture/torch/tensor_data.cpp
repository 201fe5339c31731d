// `tensor.data = value` of a tensor from outside, which gets the value's memory and layout and keeps its own history,
// version and identity.
//
// Invariant: the graph has the tensor as it was. Each run sets the data at the segment's end, so nothing in the segment
// reads the tensor behind the write, but for what its data is: there the segment ends.
#include "capture/calls/deferred.h"
#include "capture/capture.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "fake/fake.h"
#include "graph/aliases.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

constexpr const char* kIsRead = "a tensor is read whose data was set before";

Ref set_data_function() {
  static PyMethodDef definition = {"set_data",
                                   [](PyObject*, PyObject* args) -> PyObject* {
                                     PyObject *of = PyTuple_GET_ITEM(args, 0), *data = PyTuple_GET_ITEM(args, 1);
                                     if (PyObject_SetAttrString(of, "data", data) < 0) return nullptr;
                                     Py_RETURN_NONE;
                                   },
                                   METH_VARARGS, nullptr};
  static PyObject* const function = PyCFunction_New(&definition, nullptr);
  return Ref::borrow(function);
}

/// With this data it looks the same to all that asks for more than strides: sizes, dtype, device.
bool looks_same(const fake::Session& session, const at::Tensor& tensor, const at::Tensor& value) {
  return tensor.layout() == value.layout() && tensor.dtype() == value.dtype() && tensor.device() == value.device() &&
         session.sizes_of(tensor) == session.sizes_of(value) && tensor.is_conj() == value.is_conj() &&
         tensor.is_neg() == value.is_neg() && !tensor.is_inference() && !value.is_inference();
}

}  // namespace

bool Gradients::set_data(PyObject* tensor, PyObject* value) {
  constexpr int64_t any = DeferredCall::kAnyVersion;
  PyObject* const both[] = {tensor, value};
  if (!is_fake_tensor(tensor) || !is_fake_tensor(value) || !c.tensors.is_input(tensor)) return false;
  if (c.torch.is_overridden(both) || !looks_same(*c.session, unpack_tensor(tensor), unpack_tensor(value))) return false;
  const at::Tensor& real = unpack_tensor(c.tensors.original(tensor).first);
  if (real.is_view() || real.grad_fn() || unpack_tensor(tensor).grad_fn()) return false;
  if (data_of(value)) return false;
  // The graph hands on what has no history, and no tensor from outside that may be set itself.
  Ref data = Ref::borrow(value);
  if (unpack_tensor(value).requires_grad() || c.tensors.is_input(value)) {
    data = c.attributes.load_attr(value, MAGNETO_STR("data"));
  }
  data_[c.session->value_of(unpack_tensor(tensor))] = data;
  c.deferred.calls.push_back({set_data_function(), {Ref::borrow(tensor), std::move(data)}, {any, any}});
  return true;
}

PyObject* Gradients::data_of(PyObject* tensor) const {
  if (data_.empty() || !is_tensor(tensor) || !is_fake_tensor(tensor)) return nullptr;
  const auto set = data_.find(c.session->value_of(unpack_tensor(tensor)));
  return set == data_.end() ? nullptr : set->second.get();
}

void Gradients::check_data(std::span<PyObject* const> values) {
  for (PyObject* value : values) {
    if (data_of(value)) c.side_exit(BreakReason::Mutation, kIsRead);
  }
}

bool Gradients::reads_set_data(size_t first_operator) const {
  if (data_.empty()) return false;
  static const auto memory = c10::Dispatcher::singleton().findSchemaOrThrow("magneto::data", "");
  for (size_t i = first_operator; i < c.graph.aten_nodes.size(); ++i) {
    if (c.graph.aten_nodes[i].op == memory) continue;
    bool reads = false;
    graph::for_each_operand(c.graph.aten_nodes[i], [&](graph::ValueId id) { reads |= data_.contains(id); });
    if (reads) return true;
  }
  return false;
}

}  // namespace magneto::capture
