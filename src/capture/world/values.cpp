// Values: what kinds of objects there are, and how those from outside enter a capture.
#include <ATen/core/Tensor.h>
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "capture/capture.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/torch/tensor_map.h"
#include "capture/world/containers.h"
#include "capture/world/modules.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "guards/objects.h"
#include "python/abi/types.h"
#include "python/imported.h"
#include "python/made_once.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Source;
using guards::SourceKind;

namespace {

/// Types that are compared by identity and then are constants. Looked up by type, subclasses apart.
bool is_constant_type(PyTypeObject* type) {
  static constinit MadeOnce<const std::unordered_map<PyTypeObject*, bool>> made;
  const auto* types = made.get([] {
    auto* set = new std::unordered_map<PyTypeObject*, bool>;
    for (PyTypeObject* t :
         {&PyCFunction_Type, &PyMethodDescr_Type, &PyGetSetDescr_Type, &PyMemberDescr_Type, &PyWrapperDescr_Type,
          &PyClassMethodDescr_Type, &PyCode_Type, &PyProperty_Type, &PyStaticMethod_Type, &PyClassMethod_Type}) {
      (*set)[t] = true;
    }
    const std::pair<const char*, std::vector<const char*>> names[] = {
        {"torch", {"dtype", "layout", "memory_format", "device", "Generator", "finfo", "iinfo"}},
        {"torch._C", {"DispatchKey", "DispatchKeySet"}},
        {"torch._ops", {"OpOverload", "OpOverloadPacket"}},
        {"torch.jit", {"ScriptFunction"}},
        {"re", {"Pattern"}},
        {"contextvars", {"ContextVar"}},
        {"types", {"GenericAlias", "UnionType"}},
    };
    const auto add = [set](const char* module_name, const std::vector<const char*>& type_names) {
      Ref module = checked(PyImport_ImportModule(module_name));
      for (const char* name : type_names) {
        Ref t = checked(PyObject_GetAttrString(module.get(), name));
        (*set)[reinterpret_cast<PyTypeObject*>(t.release())] = true;
      }
    };
    for (const auto& [module_name, type_names] : names) add(module_name, type_names);
    if (typing_variables_in_c) add("typing", {"TypeVar", "ParamSpec", "TypeVarTuple"});
    return set;
  });
  return types->count(type) != 0;
}

/// An enum of C++ code: its members are one object each, but for those that are made of their numbers.
bool is_enum_of_cpp(PyTypeObject* type) {
  return Py_TYPE(type) != &PyType_Type && std::strcmp(Py_TYPE(type)->tp_name, "pybind11_type") == 0 &&
         PyDict_GetItemString(type_dict(type), "__entries");
}

PyObject* enum_type() {
  static constinit Imported type("enum", "Enum");
  return type.get();
}

/// Member descriptors, for guards to read by, where Python has none.
PyObject* make_member(PyTypeObject* type, size_t offset) {
  auto* member = new PyMemberDef{"__member__", T_OBJECT, static_cast<Py_ssize_t>(offset), READONLY, nullptr};
  return PyDescr_NewMember(type, member);
}
PyObject* function_receiver() {
  static PyObject* const member = make_member(&PyCFunction_Type, offsetof(PyCFunctionObject, m_self));
  return member;
}
PyObject* wrapper_descriptor() {
  static PyObject* const member = make_member(method_wrapper_type(), offsetof(MethodWrapper, descriptor));
  return member;
}
PyObject* wrapper_receiver() {
  static PyObject* const member = make_member(method_wrapper_type(), offsetof(MethodWrapper, self));
  return member;
}

/// Rooted in a constant (module, class): the object there is normally one and the same for the process's life.
bool is_static_place(const Source* source) {
  for (; source; source = source->base) {
    if (source->kind == SourceKind::Const) return true;
    if (source->kind != SourceKind::DictItem && source->kind != SourceKind::Closure &&
        source->kind != SourceKind::Cell) {
      return false;
    }
  }
  return false;
}

}  // namespace

bool is_scalar(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return object == Py_None || type == &PyBool_Type || type == &PyLong_Type || type == &PyFloat_Type ||
         type == &PyUnicode_Type || type == &PyComplex_Type || type == &PyBytes_Type || object == Py_Ellipsis ||
         object == Py_NotImplemented;
}

/// `torch.Tensor.grad.__get__`: hashes and compares as what it is bound to.
static bool is_wrapper_of_constant(PyObject* object) {
  if (Py_TYPE(object) != method_wrapper_type()) return false;
  return is_identity_constant(Ref::steal(PyObject_GetAttrString(object, "__self__")).get());
}

bool is_constant_key(PyObject* key) {
  if (!PyTuple_CheckExact(key) && Py_TYPE(key) != size_class())
    return is_scalar(key) || is_identity_constant(key) || is_wrapper_of_constant(key);
  return std::ranges::all_of(std::span(&PyTuple_GET_ITEM(key, 0), PyTuple_GET_SIZE(key)), is_constant_key);
}

bool is_identity_key(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type->tp_hash == PyBaseObject_Type.tp_hash &&
         type->tp_richcompare == PyBaseObject_Type.tp_richcompare;
}

bool is_bound_builtin(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (type == method_wrapper_type()) return true;
  if (type != &PyCFunction_Type && type != &PyCMethod_Type) return false;
  auto* function = reinterpret_cast<PyCFunctionObject*>(object);
  PyObject* self = function->m_self;
  if (!self || PyModule_Check(self) || PyType_Check(self)) return false;
  // Functions of pybind11 and the like belong to their module.
  return !function->m_module ||
         (std::strncmp(Py_TYPE(self)->tp_name, "pybind11", 8) != 0 && !PyCapsule_CheckExact(self));
}

bool is_identity_constant(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (is_bound_builtin(object) || is_generator(object)) return false;
  const std::string_view name = type->tp_name;
  if (name == "numpy.ufunc" || name == "numpy._ArrayFunctionDispatcher") return true;
  if (name.starts_with("numpy.dtypes.") || name.starts_with("numpy.dtype[")) return true;
  if (PyType_Check(object) || PyModule_Check(object) || is_constant_type(type)) return true;
  if (name.ends_with("ProcessGroup")) return true;  // whose size, rank and name don't change
  return PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(enum_type())) || is_enum_of_cpp(type);
}

bool is_builtin_container(PyObject* object) {
  static constinit Imported deque("collections", "deque"), default_dict("collections", "defaultdict");
  PyTypeObject* type = Py_TYPE(object);
  return type == &PyList_Type || type == &PyDict_Type || type == &PyTuple_Type || type == &PySet_Type ||
         type == &PyFrozenSet_Type || type == &PyODict_Type || type == deque.type() || type == default_dict.type();
}

bool is_derived_container(PyObject* object) {
  if (is_builtin_container(object)) return false;
  return PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object) || PyAnySet_Check(object) ||
         PyObject_TypeCheck(object, guards::deque_type());
}

bool is_tensor(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return is_exact_tensor_type(type) || PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(tensor_class()));
}

bool is_fake_tensor(PyObject* object) { return is_tensor(object) && fake::is_fake(unpack_tensor(object)); }

const Source* World::source_of(PyObject* object) const {
  auto found = outside.find(object);
  if (found != outside.end()) return found->second;
  auto shadowed = c.containers.shadow_original.find(object);
  return shadowed == c.containers.shadow_original.end() ? nullptr : outside.at(shadowed->second);
}

/// In this order: a kind that is no kind of `raw`, or not at this place, gives null. What is guarded by itself,
/// wherever it is read, comes before what has been read before; what is one and the same for the process's life before
/// what is asked how it is.
constexpr World::Kind World::kKinds[] = {
    {"what the segment has put into a class", &World::wrap_class_value},
    {"a scalar", &World::wrap_scalar},
    {"a tensor", &World::wrap_tensor},
    {"what has been read before", &World::wrap_known},
    {"a constant", &World::wrap_constant},
    {"a method of C code, bound", &World::wrap_bound_builtin},
    {"a function", &World::wrap_function},
    {"a value", &World::wrap_value},
    {"a cell", &World::wrap_cell},
    {"any other object", &World::wrap_object},
};

Ref World::wrap(PyObject* raw, const Source* source) {
  for (const Kind& kind : kKinds) {
    if (Ref wrapped = (this->*kind.wrap)(raw, source)) return wrapped;
  }
  return {};  // not reached: the last one takes all
}

Ref World::wrap_class_value(PyObject* raw, const Source*) {
  const auto& values = c.overlays.class_values;
  return !values.empty() && values.count(raw) ? Ref::borrow(raw) : Ref();
}

Ref World::wrap_scalar(PyObject* raw, const Source* source) {
  return is_scalar(raw) ? c.numbers.wrap_scalar(raw, source) : Ref();
}

Ref World::wrap_tensor(PyObject* raw, const Source* source) {
  return is_tensor(raw) ? c.tensors.wrap_tensor(raw, source) : Ref();
}

Ref World::wrap_known(PyObject* raw, const Source* source) {
  const auto known = outside.find(raw);
  if (known == outside.end()) return {};
  if (known->second != source && source->kind != SourceKind::Const) {
    if (known->second->kind == SourceKind::Const) {
      c.guards.identity(source, raw);
    } else {
      c.guards.alias(source, known->second);
    }
  }
  return Ref::borrow(raw);
}

/// From here on known by its source, once the guards are there.
Ref World::note(PyObject* raw, const Source* source) {
  kept.push_back(Ref::borrow(raw));
  outside[raw] = source;
  return kept.back();
}

Ref World::wrap_constant(PyObject* raw, const Source* source) {
  const bool is_constant =
      is_identity_constant(raw) || ((is_bound_builtin(raw) || PyFunction_Check(raw)) && is_static_place(source));
  if (!is_constant) return {};
  if (source->kind != SourceKind::Const) c.guards.identity(source, raw);
  return note(raw, c.sources.constant(raw));
}

/// Made anew at each look-up: what it is, and what it is bound to.
Ref World::wrap_bound_builtin(PyObject* raw, const Source* source) {
  if (!is_bound_builtin(raw)) return {};
  c.guards.builtin_method(source, raw);
  if (Py_TYPE(raw) == method_wrapper_type()) {
    const Source* wrapped = c.sources.slot(source, wrapper_descriptor());
    c.guards.identity(wrapped, reinterpret_cast<MethodWrapper*>(raw)->descriptor);
  }
  return note(raw, source);
}

Ref World::wrap_function(PyObject* raw, const Source* source) {
  if (!PyFunction_Check(raw)) return {};
  c.guards.function(source, raw);
  return note(raw, source);
}

Ref World::wrap_value(PyObject* raw, const Source* source) {
  if (!is_value(raw) || source->kind == SourceKind::Const) return {};
  c.guards.type(source, Py_TYPE(raw));
  c.numbers.exit_on_change(source, raw, "");
  c.guards.equals(source, raw);
  return note(raw, source);
}

Ref World::wrap_cell(PyObject* raw, const Source* source) {
  if (!PyCell_Check(raw)) return {};
  cell_contents.emplace(raw, c.sources.cell(source));
  return wrap_object(raw, source);
}

Ref World::wrap_object(PyObject* raw, const Source* source) {
  if (PyWeakref_CheckRefExact(raw) && std::ranges::find(kept, raw, &Ref::get) != kept.end()) {
    c.side_exit(BreakReason::OpaqueObject, "a weak reference that the segment has made is read from outside");
  }
  c.guards.type(source, Py_TYPE(raw));
  return note(raw, source);
}

bool TensorMap::is_input(PyObject* tensor) const {
  return inputs.count(c.session->value_of(unpack_tensor(tensor))) != 0;
}

bool is_small_buffer(const Source& source, const at::Tensor& tensor) {
  constexpr int64_t most = 8;
  if (source.kind != SourceKind::DictItem || source.base->kind != SourceKind::Attr) return false;
  return PyUnicode_CompareWithASCIIString(source.base->key.get(), "_buffers") == 0 && tensor.numel() <= most;
}

namespace {

/// Integers of that kind hardly ever change, so that their values may be guarded.
bool is_constant_buffer(const Source* source, const at::Tensor& tensor) {
  return is_small_buffer(*source, tensor) && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true) &&
         tensor.device().is_cpu() && tensor.is_contiguous();
}

/// What PyTorch does with all gradients at once: optimizers, scaling, clipping, zero_grad().
bool handles_gradients(const InterpFrame& frame) {
  const std::string_view module = module_of(frame.globals);
  return module.starts_with("torch.optim.") || module == "torch.amp.grad_scaler" ||
         module == "torch.nn.utils.clip_grad" ||
         PyUnicode_CompareWithASCIIString(frame.info->code->co_name, "zero_grad") == 0;
}

/// A sparse gradient is met in there: the program's call is one exit, instead of one for each line that looks at it.
void exit_at_call_of_torch(Capture& c) {
  InterpFrame* outermost = nullptr;
  bool of_gradients = false;
  for (InterpFrame* f = c.frame; f && module_of(f->globals).starts_with("torch."); f = f->caller) {
    outermost = f;
    of_gradients |= handles_gradients(*f);
  }
  if (of_gradients && outermost->caller) outermost->caller->result_is_pushed = false;
}

}  // namespace

Ref TensorMap::wrap_tensor(PyObject* raw, const Source* source) {
  auto known = fake_of.find(raw);
  if (known != fake_of.end()) {
    const Source* first = original(known->second.get()).second;
    if (first != source) c.guards.alias(source, first);
    return known->second;
  }
  const at::Tensor& tensor = unpack_tensor(raw);
  if (fake::is_fake(tensor)) return Ref::borrow(raw);
  static constinit Imported lazy("torch.nn.parameter", "UninitializedTensorMixin");
  const bool subclass = !is_exact_tensor_type(Py_TYPE(raw));
  const bool is_lazy = subclass && PyType_IsSubtype(Py_TYPE(raw), lazy.type());
  if (Ref stand_in = is_lazy ? Ref() : wrap_class_tensor(raw, source)) return stand_in;
  if (is_lazy || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_nested() ||
      tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    if (tensor.is_sparse()) exit_at_call_of_torch(c);
    c.side_exit(BreakReason::UnsupportedTensor,
                source->name() + " is a tensor of type " + Py_TYPE(raw)->tp_name + " that has no fake");
  }
  const std::vector<shapes::Expr> sizes = c.symbols.symbolic_sizes(raw, source);
  if (sizes.empty()) c.guards.tensor(source, raw);
  at::Tensor fake;
  try {
    fake = sizes.empty() ? c.session->make_input(tensor, source->name())
                         : c.session->make_input(tensor, source->name(), sizes);
  } catch (const c10::Error&) {
    const std::optional<fake::Refusal> refusal = c.session->take_refusal();
    if (!refusal) throw;
    c.side_exit(BreakReason::UnsupportedTensor,
                source->name() + " is of type " + Py_TYPE(raw)->tp_name + ": " + refusal->message);
  }
  if (!sizes.empty()) c.symbols.guard_symbolic(source, raw, sizes, c.session->strides_of(fake));
  if (c.options.knows_buffers && is_constant_buffer(source, tensor)) c.session->know_input(fake, tensor);
  inputs[c.session->value_of(fake)] = {Ref::borrow(raw), source};
  c.graph.without_torch_function |= subclass;
  Ref object = checked(tensor_object(fake, Py_TYPE(raw)));
  fake_of[raw] = object;
  c.world.kept.push_back(Ref::borrow(raw));
  return object;
}

Ref World::receiver_of(PyObject* method) {
  const Source* source = source_of(method);
  const bool wrapper = Py_TYPE(method) == method_wrapper_type();
  PyObject* self = wrapper ? reinterpret_cast<MethodWrapper*>(method)->self : PyCFunction_GET_SELF(method);
  if (!source) return Ref::borrow(self);
  if (source->kind == SourceKind::Const) return wrap(self, c.sources.constant(self));
  return wrap(self, c.sources.slot(source, wrapper ? wrapper_receiver() : function_receiver()));
}

/// `items.append` handed to C code, which may call it: it has to change the stand-in of `items`.
Ref World::resolve_bound_builtin(PyObject* method) {
  Ref self = receiver_of(method);
  if (!is_outside(self.get()) || c.containers.is_shadow(self.get())) return Ref::borrow(method);
  PyObject* descriptor = descriptor_of(method);
  if (!descriptor || !is_builtin_container(self.get())) {
    c.side_exit(BreakReason::OpaqueObject, "a method of an object from outside is handed to C code");
  }
  const bool may_change = !PyTuple_Check(self.get()) && !PyFrozenSet_Check(self.get());
  Ref stand_in = c.containers.resolve(self.get(), may_change);
  return checked(Py_TYPE(descriptor)
                     ->tp_descr_get(descriptor, stand_in.get(), reinterpret_cast<PyObject*>(Py_TYPE(stand_in.get()))));
}

}  // namespace magneto::capture
