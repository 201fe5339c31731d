// `tensor.data = value` of a tensor from outside, or of one that the segment makes and does not hand on: it gets the
// value's memory and layout and keeps its own history, version and identity.
//
// Invariant: the graph has the tensor as it was. Each run sets the data at the segment's end, so nothing in the segment
// reads the tensor behind the write. Calls with it get what has the value's memory, and the tensor's history, in its
// place; where that is not the same, the segment ends.
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "autograd/nodes.h"
#include "capture/calls/calls.h"
#include "capture/calls/deferred.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/exits/rebuild.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "fake/session.h"
#include "graph/aliases.h"
#include "python/imported.h"
#include "runtime/plan/torch_errors.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

constexpr const char* kIsRead = "a tensor is read whose data was set before";
/// Among what captures have needed: a tensor that is made inside is handed on with the data that was set.
constexpr const char* kIsMade = "the data of a tensor that is made inside";
/// Among what captures have needed: a backward of results that comes later reads the data that the leaf then has.
constexpr const char* kHandsOn = "gradients of tensors whose data was set before are handed on";

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

/// The version counter of a tensor whose data is set stays its own.
Ref bump_version_function() {
  static PyMethodDef definition = {"bump_version",
                                   [](PyObject*, PyObject* of) -> PyObject* {
                                     torch::autograd::impl::bump_version(unpack_tensor(of));
                                     Py_RETURN_NONE;
                                   },
                                   METH_O, nullptr};
  static PyObject* const function = PyCFunction_New(&definition, nullptr);
  return Ref::borrow(function);
}

/// `data` as a leaf: its gradient is that of the tensor.
at::Tensor with_history_of(const at::Tensor& tensor, const at::Tensor& data) {
  static const auto memory =
      c10::Dispatcher::singleton().findSchemaOrThrow("magneto::data", "").typed<at::Tensor(const at::Tensor&)>();
  at::Tensor leaf = memory.call(data);
  torch::autograd::impl::set_version_counter(leaf, torch::autograd::impl::version_counter(data));
  torch::autograd::impl::set_gradient_edge(leaf, torch::autograd::impl::gradient_edge(tensor));
  return leaf;
}

Ref with_history_function() {
  static PyMethodDef definition = {"with_history_of",
                                   [](PyObject*, PyObject* args) -> PyObject* {
                                     at::Tensor leaf;
                                     PyObject* const given = PyTuple_GET_ITEM(args, 0);
                                     const at::Tensor &of = unpack_tensor(PyTuple_GET_ITEM(given, 0)),
                                                      &data = unpack_tensor(PyTuple_GET_ITEM(args, 1));
                                     const bool done =
                                         runtime::with_torch_errors([&] { leaf = with_history_of(of, data); });
                                     return done ? tensor_object(std::move(leaf)) : nullptr;
                                   },
                                   METH_VARARGS, nullptr};
  static PyObject* const function = PyCFunction_New(&definition, nullptr);
  return Ref::borrow(function);
}

/// What makes one view of a memory of a tensor, and its history.
struct Form {
  std::vector<c10::SymInt> sizes, strides;
  const void *storage, *history;
  explicit Form(const at::Tensor& tensor)
      : sizes(tensor.sym_sizes().vec()),
        strides(tensor.sym_strides().vec()),
        storage(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()),
        history(tensor.grad_fn().get()) {}
};

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
  if (!is_fake_tensor(tensor) || !is_fake_tensor(value)) return false;
  const bool is_made = !c.tensors.is_input(tensor);
  if (is_made && (!is_exact_tensor_type(Py_TYPE(tensor)) || c.feedback.needed.contains(kIsMade))) return false;
  if (c.torch.is_overridden(both) || !looks_same(*c.session, unpack_tensor(tensor), unpack_tensor(value))) return false;
  const at::Tensor& real = unpack_tensor(is_made ? tensor : c.tensors.original(tensor).first);
  if (real.is_view() || real.grad_fn() || unpack_tensor(tensor).grad_fn()) return false;
  if (data_of(value)) return false;
  // The graph hands on what has no history, and no tensor from outside that may be set itself.
  Ref data = Ref::borrow(value);
  if (unpack_tensor(value).requires_grad() || c.tensors.is_input(value)) {
    data = c.attributes.load_attr(value, MAGNETO_STR("data"));
  }
  SetData& set = data_[c.session->value_of(unpack_tensor(tensor))];
  for (const Ref& former : {set.tensor, set.leaf}) {
    if (former) former_data_.insert(c.session->value_of(unpack_tensor(former.get())));
  }
  set = {.data = data, .was_leaf = set.was_leaf || set.leaf};
  data_set_at_ = at::sequence_number::peek();
  if (is_made) {
    c.world.keep(Ref::borrow(tensor));
  } else {
    c.deferred.calls.push_back({set_data_function(), {Ref::borrow(tensor), std::move(data)}, {any, any}});
  }
  return true;
}

PyObject* Gradients::data_of(PyObject* tensor) const {
  if (data_.empty() || !is_tensor(tensor) || !is_fake_tensor(tensor)) return nullptr;
  // A parameter of what is made inside shares its value.
  if (!is_exact_tensor_type(Py_TYPE(tensor)) && !c.tensors.is_input(tensor)) return nullptr;
  const auto set = data_.find(c.session->value_of(unpack_tensor(tensor)));
  return set == data_.end() ? nullptr : set->second.data.get();
}

/// The argument, or what calls are given for it; what was put in the place of which tensor is added to `read`.
Ref Gradients::in_place_of(PyObject* argument, std::vector<std::pair<PyObject*, Ref>>& read) {
  if (PyList_CheckExact(argument) || PyTuple_CheckExact(argument)) {
    const size_t before = read.size();
    Ref items = checked(PySequence_List(argument));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
      PyList_SetItem(items.get(), i, in_place_of(PyList_GET_ITEM(items.get(), i), read).release());
    }
    if (read.size() == before) return Ref::borrow(argument);
    return PyList_CheckExact(argument) ? std::move(items) : checked(PyList_AsTuple(items.get()));
  }
  if (!data_of(argument)) return Ref::borrow(argument);
  const at::Tensor& tensor = unpack_tensor(argument);
  fake::AutocastCasts& casts = c.session->impl().casts;
  // At the torch level autocast has kept a cast of the tensor itself, and knows nothing of what stands in its place.
  if (!c.options.wants_backward && casts.has(tensor)) c.side_exit(BreakReason::Mutation, kIsRead);
  SetData& set = data_.at(c.session->value_of(tensor));
  if (!set.tensor) set.tensor = c.attributes.load_attr(set.data.get(), MAGNETO_STR("data"));
  Ref put = set.tensor;
  if (tensor.requires_grad() && at::GradMode::is_enabled()) {
    if (!set.leaf) {
      const Ref of = checked(PyTuple_Pack(1, argument));  // itself, as nothing else is given it
      PyObject* const values[] = {of.get(), set.tensor.get()};
      const at::AutoGradMode with_gradients(true);
      const Ref function = with_history_function();
      set.leaf = c.torch.record(graph::TorchNode::Kind::CallFunction, function.get(), values, nullptr,
                                [&] { return tensor_object(with_history_of(tensor, unpack_tensor(values[1]))); });
    }
    put = set.leaf;
  }
  casts.stand_for(unpack_tensor(put.get()), tensor);
  read.emplace_back(argument, put);
  return put;
}

Ref Gradients::call_with_data(PyObject* callable, const CallArgs& args) {
  static constinit Imported gradient("torch.autograd", "grad"), detach("torch._C", "TensorBase.detach_");
  if (data_.empty() || callable == gradient.get() || callable == detach.get()) return {};
  const std::string_view name = c_function_name(callable);
  return with_data(args.values, [&](std::span<PyObject* const> values) {
    // Operators that write lists don't count it on stand-ins of such memory.
    std::vector<std::pair<at::Tensor, int64_t>> written;
    if (name.starts_with("_f") && name.ends_with("_") && !values.empty() && PyList_CheckExact(values[0])) {
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values[0]); ++i) {
        PyObject* const item = PyList_GET_ITEM(values[0], i);
        if (is_tensor(item)) written.emplace_back(unpack_tensor(item), unpack_tensor(item)._version());
      }
    }
    Ref result = c.torch.call_torch(callable, {{values.begin(), values.end()}, args.kwnames});
    for (const auto& [tensor, version] : written) {
      if (tensor._version() == version) torch::autograd::impl::bump_version(tensor);
    }
    return result;
  });
}

Ref Gradients::with_data(std::span<PyObject* const> args, const std::function<Ref(std::span<PyObject* const>)>& call) {
  if (data_.empty() || is_transforming() || c.torch.is_overridden(args)) return {};
  if (at::GradMode::is_enabled() && c.feedback.needed.contains(kHandsOn)) return {};
  std::vector<std::pair<PyObject*, Ref>> read;
  std::vector<Ref> kept;
  std::vector<PyObject*> given;
  const auto mark = c.session->mark();
  const size_t calls = c.graph.torch_nodes.size();
  for (PyObject* arg : args) {
    const Ref readable = c.containers.readable(arg);
    kept.push_back(in_place_of(readable.get(), read));
    given.push_back(kept.back().get());
  }
  if (read.empty()) return {};
  std::vector<Form> forms;
  for (const auto& [tensor, put] : read) forms.emplace_back(unpack_tensor(put.get()));
  Ref result = call(given);
  for (size_t i = 0; i < read.size(); ++i) {
    const at::Tensor& now = unpack_tensor(read[i].second.get());
    const Form form(now);
    // In eager the leaf is changed itself, or an error is raised.
    if (form.history != forms[i].history || form.storage != forms[i].storage || form.sizes != forms[i].sizes ||
        form.strides != forms[i].strides) {
      c.session->rollback(mark);
      c.graph.torch_nodes.resize(calls);
      c.side_exit(BreakReason::Mutation, "a tensor is changed whose data was set before");
    }
    SetData& set = data_.at(c.session->value_of(unpack_tensor(read[i].first)));
    constexpr int64_t any = DeferredCall::kAnyVersion;
    for (const int64_t version = now._version(); set.version < version; ++set.version) {
      if (!c.tensors.is_input(read[i].first)) continue;
      c.deferred.calls.push_back({bump_version_function(), {Ref::borrow(read[i].first)}, {any}});
    }
    if (result.get() == read[i].second.get()) result = Ref::borrow(read[i].first);
  }
  return result;
}

void Gradients::check_read_data() {
  const auto is_set = [&](const at::Tensor& output) {
    if (!output.defined()) return false;
    const graph::ValueId id = c.session->value_of(output);
    return data_.contains(id) && !c.tensors.inputs.contains(id);
  };
  if (!data_.empty() && std::ranges::any_of(c.exits.rebuilder->outputs(), is_set)) {
    c.feedback.needed.insert(kIsMade);
    throw Retry{};
  }
  const auto hands_on = [&](const at::Tensor& output) {
    if (!output.defined() || !output.requires_grad()) return false;
    return std::ranges::any_of(autograd::leaves_of({output}), [&](const at::Tensor& leaf) {
      const auto set = data_.find(c.session->value_of(leaf));
      return set != data_.end() && (set->second.leaf || set->second.was_leaf);
    });
  };
  if (data_.empty() || std::ranges::none_of(c.exits.rebuilder->outputs(), hands_on)) return;
  c.feedback.needed.insert(kHandsOn);
  throw Retry{};
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
    graph::for_each_operand(c.graph.aten_nodes[i],
                            [&](graph::ValueId id) { reads |= data_.contains(id) || former_data_.contains(id); });
    if (reads) return true;
  }
  return false;
}

}  // namespace magneto::capture
