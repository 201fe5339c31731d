// Attributes of tensors.
#include <Python.h>

#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/numbers/symbols.h"
#include "capture/torch/gradients.h"
#include "capture/torch/memory_questions.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "python/abi/dicts.h"
#include "python/abi/types.h"
#include "runtime/plan/torch_errors.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Source;

namespace {

bool same_data(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() && a.dtype() == b.dtype() &&
         a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset();
}

bool gives_view(PyObject* name) {
  constexpr const char* kViews[] = {"T", "mT", "H", "mH", "real", "imag"};
  return std::ranges::any_of(kViews,
                             [&](const char* view) { return PyUnicode_CompareWithASCIIString(name, view) == 0; });
}

/// The plain `getattr(x, name)`, or the same by another function, as a call of the graph.
template <typename Compute>
Ref record_getattr(Capture& c, PyObject* owner, PyObject* name, const Compute& compute) {
  static PyObject* const function = PyDict_GetItemString(PyEval_GetBuiltins(), "getattr");
  PyObject* args[] = {owner, name};
  return c.torch.record(graph::TorchNode::Kind::CallFunction, function, args, nullptr, compute);
}

}  // namespace

/// Fields of C code that are read in a way of their own; null: as all others, a call of the graph. (No guard of a
/// tensor tells what is refused.)
constexpr Attributes::TensorField Attributes::kTensorFields[] = {
    {"grad_fn", &Attributes::read_history},
    {"_backward_hooks", &Attributes::refuse_graph_fact},
    {"_post_accumulate_grad_hooks", &Attributes::refuse_graph_fact},
    {"name", &Attributes::refuse_graph_fact},
    {"_version", &Attributes::refuse_graph_fact},
    {"output_nr", &Attributes::refuse_graph_fact},
    {"is_leaf", &Attributes::read_history},
    {"retains_grad", &Attributes::refuse_gradient_fact},
    {"_base", &Attributes::read_base},
    {"grad", &Attributes::read_grad},
    {"shape", &Attributes::read_tensor_shape},
    {"data", &Attributes::read_data},
};

Ref Attributes::read_tensor_field(PyObject* owner, PyObject* name) {
  if (name == MAGNETO_STR("__dict__")) c.side_exit(BreakReason::OpaqueObject, "the __dict__ of a tensor is read");
  const auto get = [&] { return PyObject_GetAttr(owner, name); };
  if (c.torch.is_overridden({&owner, 1})) return record_getattr(c, owner, name, get);
  for (const TensorField& field : kTensorFields) {
    if (PyUnicode_CompareWithASCIIString(name, field.name) != 0) continue;
    if (Ref value = (this->*field.read)(owner, name)) return value;
  }
  if (gives_view(name)) {
    const auto again = [&](const auto& put) { return read_tensor_field(put[0], name); };
    if (Ref value = c.gradients.with_data({&owner, 1}, again)) return value;
  }
  return record_getattr(c, owner, name, get);
}

Ref Attributes::refuse_graph_fact(PyObject*, PyObject* name) {
  c.side_exit(BreakReason::AutogradCall, std::string("tensor attribute ") + PyUnicode_AsUTF8(name) + " is read");
}

Ref Attributes::refuse_gradient_fact(PyObject* owner, PyObject* name) {
  return unpack_tensor(owner).requires_grad() ? refuse_graph_fact(owner, name) : Ref();
}

/// The attribute that the current instruction loads is only asked whether it is None.
static bool is_compared_with_none(const Capture& c) {
  const Instr& load = c.frame->instr();
  const Instr& next = c.frame->info->instrs[load.next];
  if (load.op != Op::LOAD_ATTR) return false;
  if (next.op == Op::POP_JUMP_IF_NONE || next.op == Op::POP_JUMP_IF_NOT_NONE) return true;
  return next.op == Op::LOAD_CONST && PyTuple_GET_ITEM(c.frame->info->consts.get(), next.arg) == Py_None &&
         c.frame->info->instrs[next.next].op == Op::IS_OP;
}

namespace {

/// 1 for a tensor that autograd has no history of, else 0.
PyObject* leaf_number(PyObject*, PyObject* const* args, Py_ssize_t) {
  return PyLong_FromLong(unpack_tensor(args[0]).is_leaf());
}

PyObject* leaf_reader() {
  static PyMethodDef method = {"leaf_of", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&leaf_number)),
                               METH_FASTCALL, nullptr};
  static PyObject* const function = checked(PyCFunction_New(&method, nullptr)).release();
  return function;
}

}  // namespace

/// Whether the tensor has a history: a stand-in knows what the segment has done, and of a tensor from outside each run
/// asks. What it is, is another object there.
Ref Attributes::read_history(PyObject* owner, PyObject* name) {
  const at::Tensor& tensor = unpack_tensor(owner);
  if (!tensor.requires_grad()) return {};
  bool has_history = static_cast<bool>(tensor.grad_fn());
  const auto [real, source] = c.tensors.original(owner);
  if (real) {
    if (!is_fake_tensor(owner) || is_transformed(owner)) return refuse_graph_fact(owner, name);
    const Ref leaf = checked(leaf_number(nullptr, &real, 1));
    c.guards.equals(c.sources.call(leaf_reader(), source, nullptr), leaf.get());
    has_history |= !unpack_tensor(real).is_leaf();
  }
  if (name == MAGNETO_STR("is_leaf")) return Ref::borrow(has_history ? Py_False : Py_True);
  if (!has_history) return Ref::borrow(Py_None);
  if (!is_compared_with_none(c)) return refuse_graph_fact(owner, name);
  return Ref::borrow(Py_Ellipsis);  // any object but None
}

Ref Attributes::read_base(PyObject* owner, PyObject* name) {
  Ref base = checked(PyObject_GetAttr(owner, name));
  PyObject* const root = base.get() == Py_None ? owner : base.get();
  if (!c.tensors.is_input(root) || !is_view(c, root)) return base;
  if (!is_compared_with_none(c)) c.side_exit(BreakReason::AutogradCall, "the base of a tensor from outside is read");
  return Ref::borrow(Py_Ellipsis);  // any object but None
}

namespace {

/// `p.grad is not None`, of what is read now.
bool is_compared_with_none(const InterpFrame* f) {
  if (!f || f->instr().op != Op::LOAD_ATTR) return false;
  const Op next = f->info->instrs[f->instr().next].op;
  return next == Op::POP_JUMP_IF_NONE || next == Op::POP_JUMP_IF_NOT_NONE;
}

}  // namespace

Ref Attributes::read_grad(PyObject* owner, PyObject* name) {
  const auto value = c.session->value_of(unpack_tensor(owner));
  if (const auto set = c.gradients.grads.find(value); value != graph::kNoValue && set != c.gradients.grads.end()) {
    return set->second;
  }
  const auto [real, of_real] = c.tensors.original(owner);
  if (!real) return Ref::borrow(Py_None);
  Ref grad = checked(PyObject_GetAttr(real, name));
  const guards::Source* source = c.sources.grad(of_real);
  // For which there is no stand-in: zero_grad() asks for no more.
  if (is_tensor(grad.get()) && unpack_tensor(grad.get()).is_sparse() && is_compared_with_none(c.frame)) {
    c.guards.type(source, Py_TYPE(grad.get()));
    return Ref::borrow(Py_True);
  }
  return c.world.wrap(grad.get(), source);
}

Ref Attributes::read_tensor_shape(PyObject* owner, PyObject*) { return c.symbols.shape_of(unpack_tensor(owner)); }

/// A value of its own: it stays what it is when the tensor's data is set, and may be written in place.
Ref Attributes::read_data(PyObject* owner, PyObject* name) {
  if (PyObject* set = c.gradients.data_of(owner)) return read_data(set, name);
  static const auto data =
      c10::Dispatcher::singleton().findSchemaOrThrow("magneto::data", "").typed<at::Tensor(const at::Tensor&)>();
  return record_getattr(c, owner, name, [&]() -> PyObject* {
    if (is_transformed(owner)) return PyObject_CallMethod(owner, "detach", nullptr);
    at::Tensor value;
    const bool done = runtime::with_torch_errors([&] { value = data.call(unpack_tensor(owner)); });
    return done ? tensor_object(std::move(value)) : nullptr;
  });
}

/// The program has given the tensor an attribute of that name, which hides a method.
static bool hangs_on(Capture& c, PyObject* tensor, PyObject* name) {
  PyObject* const real = c.tensors.original(tensor).first;
  Overlay* written = real ? c.overlays.find(real, false) : nullptr;
  if (written && written->find(name)) return true;
  PyObject* const dict = instance_dict(real ? real : tensor);
  return dict && PyDict_GetItemWithError(dict, name);
}

Ref Attributes::read_of_tensor(PyObject* owner, PyObject* name, bool* unbound) {
  PyObject* descriptor = type_lookup(Py_TYPE(owner), name);
  if (descriptor) {
    PyTypeObject* kind = Py_TYPE(descriptor);
    if (kind == &PyGetSetDescr_Type) return read_tensor_field(owner, name);
    const bool hidden = !kind->tp_descr_set && hangs_on(c, owner, name);
    if (!hidden && kind->tp_descr_get && !is_property_type(kind)) {
      return bind(descriptor, owner, Py_TYPE(owner), unbound);
    }
  }
  // Attributes that users hang on tensors live in the dict of the real one.
  if (const auto [real, source] = c.tensors.original(owner); real) {
    if (Overlay* written = c.overlays.find(real, false)) {
      if (auto* entry = written->find(name)) return entry->second;
    }
    PyObject* dict = instance_dict_of(real);
    PyObject* value = dict ? PyDict_GetItemWithError(dict, name) : nullptr;
    const Source* place = c.sources.attr(source, name);
    if (value) return c.world.wrap(value, place);
    if (dict) c.guards.absent(place);
  } else if (PyObject* dict = instance_dict_of(owner)) {
    if (PyObject* value = PyDict_GetItemWithError(dict, name)) return Ref::borrow(value);
  }
  if (descriptor && is_property_type(Py_TYPE(descriptor))) return bind(descriptor, owner, Py_TYPE(owner), nullptr);
  if (descriptor) return c.world.wrap(descriptor, c.sources.constant(descriptor));
  return {};
}

/// What hangs on a tensor is in its dict. That of a tensor from outside is written when the graph has run.
void Attributes::store_tensor_attr(PyObject* owner, PyObject* name, PyObject* value) {
  const auto [real, source] = c.tensors.original(owner);
  PyObject* descriptor = type_lookup(Py_TYPE(owner), name);
  if (descriptor && Py_TYPE(descriptor)->tp_descr_set) {
    if (is_property_type(Py_TYPE(descriptor))) return generic_setattr(owner, name, value);
    if (value && name == MAGNETO_STR("requires_grad") && is_fake_tensor(owner) && c.tensors.is_input(owner)) {
      if (value == (unpack_tensor(owner).requires_grad() ? Py_True : Py_False)) return;
      if (c.gradients.set_requires_grad(owner, value)) return;
    }
    if (real || !value) c.side_exit(BreakReason::Mutation, "an attribute of a tensor from outside is set");
    PyObject* written[] = {owner};
    if (c.torch.is_overridden(written))
      c.side_exit(BreakReason::Mutation, "an attribute of a tensor of another class is set");
    if (PyUnicode_CompareWithASCIIString(name, "data") == 0 || PyUnicode_CompareWithASCIIString(name, "grad") == 0) {
      c.side_exit(BreakReason::Mutation, "tensor.data or tensor.grad is set");
    }
    if (PyObject_SetAttr(owner, name, value) < 0) throw PythonError{};
    return;
  }
  if (!real) {
    if (PyObject_GenericSetAttr(owner, name, value) < 0) throw PythonError{};
    return;
  }
  const auto known = c.tensors.fake_of.find(real);
  const bool own = known != c.tensors.fake_of.end() && known->second.get() == owner;
  if (!own || !value) c.side_exit(BreakReason::Mutation, "an attribute of a tensor from outside is set");
  if (PyObject* dict = instance_dict_of(real)) c.world.check_finalizer(PyDict_GetItemWithError(dict, name));
  c.overlays.of(real, false).set(name, value);
}

/// It is the gradient, or None, that a tensor from outside may be given: one without a history, that looks the same.
bool Attributes::takes_grad(PyObject* owner, PyObject* value) {
  PyObject* const both[] = {owner, value};
  if (!c.tensors.is_input(owner) || c.torch.is_overridden(both)) return false;
  if (value == Py_None) return true;
  if (!is_fake_tensor(value) || value == owner) return false;
  const at::Tensor &tensor = unpack_tensor(owner), &grad = unpack_tensor(value);
  return !grad.requires_grad() && !grad.is_inference() && grad.dtype() == tensor.dtype() &&
         grad.device() == tensor.device() && c.session->sizes_of(grad) == c.session->sizes_of(tensor);
}

bool Attributes::write_of_tensor(PyObject* owner, PyObject* name, PyObject* value, PyObject* setter) {
  // `p.data *= 2` and `p.data = p.data.to(dtype)` end in setting what is there already.
  PyObject* const set = c.gradients.data_of(owner);
  if (value && name == MAGNETO_STR("data") && is_tensor(value) &&
      same_data(unpack_tensor(set ? set : owner), unpack_tensor(value))) {
    return true;
  }
  if (value && name == MAGNETO_STR("data")) {
    if (c.gradients.set_data(owner, value) || c.gradients.take_data(owner, value)) return true;
  }
  if (value && name == MAGNETO_STR("grad") && takes_grad(owner, value)) {
    // `p.grad /= 2` ends in setting what is there already.
    if (value != Py_None && read_grad(owner, name).get() == value) return true;
    Ref& known = c.gradients.grads[c.session->value_of(unpack_tensor(owner))];
    if (known.get() == value) return true;
    known = Ref::borrow(value);
    c.gradients.set_at_end(owner);
    return true;
  }
  const bool clears = value == Py_None && name == MAGNETO_STR("grad");
  if (clears && is_fake_tensor(owner) && is_exact_tensor_type(Py_TYPE(owner)) && !c.tensors.is_input(owner) &&
      !c.torch.is_overridden({&owner, 1})) {
    c.gradients.grads.erase(c.session->value_of(unpack_tensor(owner)));
    return true;
  }
  if (setter && PyFunction_Check(setter)) return write_of_object(owner, name, value, setter);
  store_tensor_attr(owner, name, value);
  return true;
}

}  // namespace magneto::capture
