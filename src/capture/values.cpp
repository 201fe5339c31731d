// Values: how objects from outside enter a capture, and their stand-ins.
#include <ATen/core/Tensor.h>
#include <Python.h>
#include <structmember.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>

#include "capture/capture.h"
#include "python/imported.h"
#include "python/sets.h"
#include "python/types.h"

namespace magneto::capture {

using guards::Source;
using guards::SourceKind;

namespace {

/// Types that are compared by identity and then are constants. Looked up by type, subclasses apart.
bool is_constant_type(PyTypeObject* type) {
  static const auto* types = [] {
    auto* set = new std::unordered_map<PyTypeObject*, bool>;
    for (PyTypeObject* t :
         {&PyCFunction_Type, &PyMethodDescr_Type, &PyGetSetDescr_Type, &PyMemberDescr_Type, &PyWrapperDescr_Type,
          &PyClassMethodDescr_Type, &PyCode_Type, &PyProperty_Type, &PyStaticMethod_Type, &PyClassMethod_Type}) {
      (*set)[t] = true;
    }
    const std::pair<const char*, std::vector<const char*>> names[] = {
        {"torch", {"dtype", "layout", "memory_format", "device", "Generator", "finfo", "iinfo"}},
        {"torch._ops", {"OpOverload", "OpOverloadPacket"}},
        {"torch.jit", {"ScriptFunction"}},
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
  }();
  return types->count(type) != 0;
}

PyObject* enum_type() {
  static constinit Imported type("enum", "Enum");
  return type.get();
}

PyTypeObject* deque_type() {
  static constinit Imported type("collections", "deque");
  return type.type();
}

PyTypeObject* defaultdict_type() {
  static constinit Imported type("collections", "defaultdict");
  return type.type();
}

/// As Objects/descrobject.c has it.
struct MethodWrapper {
  PyObject ob_base;
  PyObject* descriptor;
  PyObject* self;
};

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
  static PyObject* const member = make_member(&_PyMethodWrapper_Type, offsetof(MethodWrapper, descriptor));
  return member;
}
PyObject* wrapper_receiver() {
  static PyObject* const member = make_member(&_PyMethodWrapper_Type, offsetof(MethodWrapper, self));
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

bool is_identity_key(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type->tp_hash == PyBaseObject_Type.tp_hash &&
         type->tp_richcompare == PyBaseObject_Type.tp_richcompare;
}

bool is_bound_builtin(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (type == &_PyMethodWrapper_Type) return true;
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
  return PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(enum_type()));
}

bool is_builtin_container(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return type == &PyList_Type || type == &PyDict_Type || type == &PyTuple_Type || type == &PySet_Type ||
         type == &PyFrozenSet_Type || type == &PyODict_Type || type == deque_type() || type == defaultdict_type();
}

bool is_derived_container(PyObject* object) {
  if (is_builtin_container(object)) return false;
  return PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object) || PyAnySet_Check(object);
}

bool is_tensor(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return THPVariable_CheckTypeExact(type) || PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

bool is_fake_tensor(PyObject* object) { return is_tensor(object) && fake::is_fake(THPVariable_Unpack(object)); }

const Source* Capture::source_of(PyObject* object) const {
  auto found = outside_.find(object);
  if (found != outside_.end()) return found->second;
  auto shadowed = shadow_original_.find(object);
  return shadowed == shadow_original_.end() ? nullptr : outside_.at(shadowed->second);
}

Ref Capture::wrap(PyObject* raw, const Source* source) {
  if (!class_values_.empty() && class_values_.count(raw)) return Ref::borrow(raw);
  if (is_scalar(raw)) return wrap_scalar(raw, source);
  if (is_tensor(raw)) return wrap_tensor(raw, source);
  auto known = outside_.find(raw);
  if (known != outside_.end()) {
    if (known->second != source && source->kind != SourceKind::Const) {
      if (known->second->kind == SourceKind::Const) {
        guards.identity(source, raw);
      } else {
        guards.alias(source, known->second);
      }
    }
    return Ref::borrow(raw);
  }
  kept_.push_back(Ref::borrow(raw));
  const bool static_place = source->kind == SourceKind::Const || is_static_place(source);
  if (is_bound_builtin(raw) && !static_place) {  // made anew at each look-up: what it is, and what it is bound to
    guards.builtin_method(source, raw);
    if (Py_TYPE(raw) == &_PyMethodWrapper_Type) {
      const Source* wrapped = sources.slot(source, wrapper_descriptor());
      guards.identity(wrapped, reinterpret_cast<MethodWrapper*>(raw)->descriptor);
    }
    outside_[raw] = source;
    return Ref::borrow(raw);
  }
  if (is_identity_constant(raw) || is_bound_builtin(raw) || (PyFunction_Check(raw) && static_place)) {
    if (source->kind != SourceKind::Const) guards.identity(source, raw);
    outside_[raw] = sources.constant(raw);
  } else {
    if (PyFunction_Check(raw)) {
      guards.function(source, raw);
    } else {
      guards.type(source, Py_TYPE(raw));
      if (is_value(raw) && source->kind != SourceKind::Const) {
        exit_on_change(source, raw, "");
        guards.equals(source, raw);
      }
    }
    outside_[raw] = source;
    if (PyCell_Check(raw)) cell_contents_.emplace(raw, sources.cell(source));
  }
  return Ref::borrow(raw);
}

bool Capture::is_input(PyObject* tensor) const {
  return inputs_.count(session->value_of(THPVariable_Unpack(tensor))) != 0;
}

namespace {

/// A module's own small integers (a stride, a length): they hardly ever change, so that their values may be guarded.
bool is_constant_buffer(const Source* source, const at::Tensor& tensor) {
  constexpr int64_t most = 8;
  if (source->kind != SourceKind::DictItem || source->base->kind != SourceKind::Attr) return false;
  return PyUnicode_CompareWithASCIIString(source->base->key.get(), "_buffers") == 0 && tensor.numel() <= most &&
         at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true) && tensor.device().is_cpu() &&
         tensor.is_contiguous();
}

}  // namespace

Ref Capture::wrap_tensor(PyObject* raw, const Source* source) {
  auto known = fake_of_.find(raw);
  if (known != fake_of_.end()) {
    const Source* first = inputs_.at(session->value_of(THPVariable_Unpack(known->second.get()))).source;
    if (first != source) guards.alias(source, first);
    return known->second;
  }
  const at::Tensor& tensor = THPVariable_Unpack(raw);
  if (fake::is_fake(tensor)) return Ref::borrow(raw);
  if (!THPVariable_CheckTypeExact(Py_TYPE(raw)) || tensor.layout() != at::kStrided || tensor.is_quantized() ||
      tensor.is_nested() || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    side_exit(BreakReason::UnsupportedTensor,
              source->name() + " is a tensor of type " + Py_TYPE(raw)->tp_name + " that has no fake");
  }
  const std::vector<shapes::Expr> sizes = symbolic_sizes(raw, source);
  at::Tensor fake;
  if (sizes.empty()) {
    guards.tensor(source, raw);
    fake = session->make_input(tensor, source->name());
  } else {
    fake = session->make_input(tensor, source->name(), sizes);
    guard_symbolic(source, raw, sizes, session->strides_of(fake));
  }
  if (knows_buffers && is_constant_buffer(source, tensor)) session->know_input(fake, tensor);
  inputs_[session->value_of(fake)] = {Ref::borrow(raw), source};
  Ref object = checked(THPVariable_Wrap(fake, Py_TYPE(raw)));
  fake_of_[raw] = object;
  kept_.push_back(Ref::borrow(raw));
  return object;
}

// -- containers ------------------------------------------------------------------------------------------------------

Ref Capture::resolve(PyObject* object, bool will_mutate) {
  if (is_bound_builtin(object)) return resolve_bound_builtin(object);
  if (!is_builtin_container(object)) return Ref::borrow(object);
  auto shadow = shadows_.find(object);
  if (shadow != shadows_.end()) {
    shadow->second.dirty |= will_mutate;
    writes_ += will_mutate;
    return shadow->second.object;
  }
  auto of_shadow = shadow_original_.find(object);
  if (of_shadow != shadow_original_.end()) {
    shadows_.at(of_shadow->second).dirty |= will_mutate;
    writes_ += will_mutate;
    return Ref::borrow(object);
  }
  const Source* source = source_of(object);
  if (!source) return Ref::borrow(object);
  Ref made = make_shadow(object, source);
  if (will_mutate) {
    shadows_.at(object).dirty = true;
    ++writes_;
  }
  return made;
}

Ref Capture::receiver_of(PyObject* method) {
  const Source* source = source_of(method);
  const bool wrapper = Py_TYPE(method) == &_PyMethodWrapper_Type;
  PyObject* self = wrapper ? reinterpret_cast<MethodWrapper*>(method)->self : PyCFunction_GET_SELF(method);
  if (!source) return Ref::borrow(self);
  if (source->kind == SourceKind::Const) return wrap(self, sources.constant(self));
  return wrap(self, sources.slot(source, wrapper ? wrapper_receiver() : function_receiver()));
}

/// `items.append` handed to C code, which may call it: it has to change the stand-in of `items`.
Ref Capture::resolve_bound_builtin(PyObject* method) {
  Ref self = receiver_of(method);
  if (!is_outside(self.get()) || is_shadow(self.get())) return Ref::borrow(method);
  PyObject* descriptor = descriptor_of(method);
  if (!descriptor || !is_builtin_container(self.get())) {
    side_exit(BreakReason::OpaqueObject, "a method of an object from outside is handed to C code");
  }
  const bool may_change = !PyTuple_Check(self.get()) && !PyFrozenSet_Check(self.get());
  Ref stand_in = resolve(self.get(), may_change);
  return checked(Py_TYPE(descriptor)
                     ->tp_descr_get(descriptor, stand_in.get(), reinterpret_cast<PyObject*>(Py_TYPE(stand_in.get()))));
}

void Capture::refuse_opaque_iterable(PyObject* value) {
  if (!is_outside(value) || is_shadow(value) || is_builtin_container(value) || is_tensor(value) || PyType_Check(value))
    return;
  PyTypeObject* type = Py_TYPE(value);
  const bool derived_set = PyAnySet_Check(value);
  if (derived_set || PyIter_Check(value) || (is_opaque(value) && type->tp_iter) ||
      (type->tp_iter && !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && !is_value(value))) {
    side_exit(BreakReason::OpaqueIterator,
              std::string("an object of type ") + type->tp_name + " from outside is iterated over");
  }
}

void Capture::guard_contents(PyObject* value) {
  if (!is_builtin_container(value)) return;
  refuse_opaque(resolve_deep(value).get(), 4);
  if (holds_changed(value, 0)) {
    side_exit(BreakReason::OpaqueObject, "a container is compared that holds one that has been changed");
  }
}

bool Capture::holds_changed(PyObject* value, int depth) {
  if (depth > 50) return true;  // in a circle, perhaps
  Ref seen = resolve(value);
  auto changed = [&](PyObject* item) {
    if (!is_builtin_container(item)) return false;
    auto original = shadow_original_.find(item);
    auto shadow = shadows_.find(original == shadow_original_.end() ? item : original->second);
    return find_tail(item) || (shadow != shadows_.end() && shadow->second.dirty) || holds_changed(item, depth + 1);
  };
  if (PyTuple_Check(seen.get()) || PyList_Check(seen.get())) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(seen.get()); ++i) {
      if (changed(PySequence_Fast_GET_ITEM(seen.get(), i))) return true;
    }
  } else if (PyDict_Check(seen.get())) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(seen.get(), &position, &key, &item)) {
      if (changed(item)) return true;
    }
  }
  return false;
}

Ref Capture::make_shadow(PyObject* original, const Source* source) {
  const InContainer scope(*this);
  PyTypeObject* type = Py_TYPE(original);
  Ref shadow;
  bool dirty = false;
  if (type == &PyTuple_Type || type == &PyList_Type) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(original);
    guard_length(source, type, size);
    shadow = checked(type == &PyTuple_Type ? PyTuple_New(size) : PyList_New(size));
    for (Py_ssize_t i = 0; i < size; ++i) {
      Ref item = wrap(PySequence_Fast_GET_ITEM(original, i), sources.seq_item(source, i));
      if (type == &PyTuple_Type) {
        PyTuple_SET_ITEM(shadow.get(), i, item.release());
      } else {
        PyList_SET_ITEM(shadow.get(), i, item.release());
      }
    }
    if (const std::vector<Ref>* tail = find_tail(original)) {
      for (const Ref& item : *tail) {
        if (PyList_Append(shadow.get(), item.get()) < 0) throw PythonError{};
      }
      std::erase_if(tails_, [&](const auto& entry) { return entry.first == original; });
      dirty = true;
    }
  } else if (PyDict_Check(original)) {
    std::vector<PyObject*> keys;
    Ref order = checked(PySequence_List(original));  // OrderedDict's order is its own
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(order.get()); ++i) {
      PyObject* key = PyList_GET_ITEM(order.get(), i);
      if (!is_scalar(key) && !is_identity_constant(key) && !is_identity_key(key) && !is_tensor(key)) {
        side_exit(BreakReason::OpaqueObject, source->name() + " is a dict with keys of type " + Py_TYPE(key)->tp_name);
      }
      keys.push_back(key);
    }
    exit_on_change(source, checked(PyLong_FromSize_t(keys.size())).get(), ".__len__()");
    guards.dict_keys(source, type, keys);
    shadow = checked(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(type)));
    if (type == defaultdict_type()) {
      PyObject* member = PyDict_GetItemString(type_dict(type), "default_factory");
      Ref factory = checked(PyObject_GetAttrString(original, "default_factory"));
      Ref known = wrap(factory.get(), sources.slot(source, member));
      if (PyObject_SetAttrString(shadow.get(), "default_factory", known.get()) < 0) throw PythonError{};
    }
    for (PyObject* k : keys) {
      PyObject* value = PyDict_GetItemWithError(original, k);
      if (!value) throw PythonError{};
      Ref item = wrap(value, sources.dict_item(source, k));
      // The guard pins the keys; what is read of one is read as of a constant.
      Ref known = is_scalar(k) ? Ref::borrow(k) : wrap(k, sources.constant(k));
      if (PyDict_Check(shadow.get()) && !PyODict_Check(shadow.get())
              ? PyDict_SetItem(shadow.get(), known.get(), item.get()) < 0
              : PyObject_SetItem(shadow.get(), known.get(), item.get()) < 0) {
        throw PythonError{};
      }
    }
    if (Overlay* written = find_overlay(original, true)) {
      for (const auto& [name, item] : written->entries) {
        if ((item ? PyObject_SetItem(shadow.get(), name.get(), item.get())
                  : PyObject_DelItem(shadow.get(), name.get())) < 0) {
          throw PythonError{};
        }
      }
    }
  } else if (type == &PySet_Type || type == &PyFrozenSet_Type) {
    Ref items = checked(PySequence_List(original));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
      PyObject* item = PyList_GET_ITEM(items.get(), i);
      if (!is_scalar(item) && !(PyType_Check(item) && Py_TYPE(item) == &PyType_Type)) {
        side_exit(BreakReason::OpaqueObject, source->name() + " is a set with items of type " + Py_TYPE(item)->tp_name);
      }
    }
    exit_on_change(source, checked(PyFrozenSet_New(original)).get(), "");
    if (source->kind != SourceKind::Const || type == &PySet_Type) guards.equals(source, original);
    shadow = clone_set(original);
  } else {
    side_exit(BreakReason::OpaqueObject, source->name() + " is a " + type->tp_name);
  }
  shadows_[original] = {Ref::borrow(original), shadow, dirty};
  shadow_original_[shadow.get()] = original;
  return shadow;
}

const std::vector<Ref>* Capture::find_tail(PyObject* list) const {
  const auto found = std::ranges::find(tails_, list, [](const auto& entry) { return entry.first; });
  return found == tails_.end() ? nullptr : &found->second;
}

void Capture::append(PyObject* list, PyObject* item) {
  const bool unread = PyList_CheckExact(list) && is_outside(list) && !is_shadow(list) && !shadows_.count(list);
  if (!unread) {
    if (PyList_Append(resolve(list, /*will_mutate=*/true).get(), item) < 0) throw PythonError{};
    return;
  }
  auto tail = std::ranges::find(tails_, list, [](const auto& entry) { return entry.first; });
  if (tail == tails_.end()) tail = tails_.insert(tail, {list, {}});
  tail->second.push_back(Ref::borrow(item));
  ++writes_;
}

namespace {

/// The container with `replacement(item)` for its items. In place, so that it stays the one that it is: a stand-in, or
/// one that the capture has made.
template <typename Replacement>
void replace_items(PyObject* container, const Replacement& replacement) {
  if (PyTuple_Check(container) || PyList_Check(container)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(container, i);
      Ref other = replacement(item);
      if (other.get() == item) continue;
      PySequence_Fast_ITEMS(container)[i] = other.release();
      Py_DECREF(item);
    }
  } else if (PyDict_CheckExact(container)) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(container, &position, &key, &item)) {
      Ref other = replacement(item);
      if (other.get() == item) continue;
      if (PyDict_SetItem(container, key, other.get()) < 0) throw PythonError{};
    }
  }
}

constexpr int kDeepest = 50;
constexpr const char* kTooDeep = "a container that may hold itself is read";

}  // namespace

Ref Capture::resolve_deep(PyObject* object, int depth) {
  if (depth > kDeepest) side_exit(BreakReason::OpaqueObject, kTooDeep);
  Ref top = resolve(object);
  if (PyTuple_CheckExact(top.get()) || PyList_CheckExact(top.get()) || PyDict_CheckExact(top.get())) {
    replace_items(top.get(), [&](PyObject* item) {
      return is_builtin_container(item) ? resolve_deep(item, depth + 1) : Ref::borrow(item);
    });
  }
  return top;
}

namespace {

/// PyTorch reads it as it reads a plain one.
bool is_derived_sequence(PyObject* object) {
  return is_derived_container(object) && (PyTuple_Check(object) || PyList_Check(object));
}

bool holds_derived_sequence(const Capture& capture, PyObject* container) {
  const auto is_one = [&](PyObject* item) {
    if (is_derived_sequence(item)) return capture.is_outside(item);
    return is_builtin_container(item) && holds_derived_sequence(capture, item);
  };
  if (PyTuple_CheckExact(container) || PyList_CheckExact(container)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i) {
      if (is_one(PySequence_Fast_GET_ITEM(container, i))) return true;
    }
  } else if (PyDict_CheckExact(container)) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(container, &position, &key, &item)) {
      if (is_one(item)) return true;
    }
  }
  return false;
}

Ref copy_of(PyObject* container) {
  if (PyDict_CheckExact(container)) return checked(PyDict_Copy(container));
  Ref list = checked(PySequence_List(container));
  return PyTuple_CheckExact(container) ? checked(PyList_AsTuple(list.get())) : list;
}

}  // namespace

Ref Capture::readable(PyObject* argument, int depth) {
  if (depth > kDeepest) side_exit(BreakReason::OpaqueObject, kTooDeep);
  const auto read_items = [&](const Ref& container) {
    replace_items(container.get(), [&](PyObject* item) { return readable(item, depth + 1); });
  };
  if (is_derived_sequence(argument) && is_outside(argument)) {
    Ref contents = contents_of(argument);
    read_items(contents);
    if (PyList_Check(argument)) return contents;
    // Still of its class, past its constructor: functions of torch ask for fields.
    Ref args = checked(PyTuple_Pack(1, contents.get()));
    return checked(PyTuple_Type.tp_new(Py_TYPE(argument), args.get(), nullptr));
  }
  if (!is_builtin_container(argument)) return Ref::borrow(argument);
  Ref top = resolve_deep(argument, depth);
  if (!holds_derived_sequence(*this, top.get())) return top;
  Ref copy = copy_of(top.get());  // the program goes on with the items that it has
  read_items(copy);
  return copy;
}

// -- overlays --------------------------------------------------------------------------------------------------------

std::pair<Ref, Ref>* Overlay::find(PyObject* name) {
  const auto same = [name](PyObject* known) {
    if (known == name || is_tensor(known) || is_tensor(name)) return known == name;  // tensors compare their elements
    return PyObject_RichCompareBool(known, name, Py_EQ) == 1;
  };
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (same(entry->first.get())) return &*entry;
  }
  return nullptr;
}

void Overlay::set(PyObject* name, PyObject* value) {
  auto* entry = find(name);
  if (entry && entry->second) {
    entry->second = Ref::borrow(value);
  } else {  // after a deletion the new entry comes last, as in a dict
    entries.emplace_back(Ref::borrow(name), Ref::borrow(value));
  }
}

void Overlay::erase(PyObject* name, bool in_original) {
  if (auto* entry = find(name)) entries.erase(entries.begin() + (entry - entries.data()));
  if (in_original && !find(name)) entries.emplace_back(Ref::borrow(name), Ref());
}

Overlay* Capture::find_overlay(PyObject* object, bool items) {
  auto found = overlay_of_[items].find(object);
  return found == overlay_of_[items].end() ? nullptr : found->second;
}

Overlay& Capture::overlay(PyObject* object, bool items) {
  ++writes_;
  if (Overlay* known = find_overlay(object, items)) return *known;
  overlays_.push_back(std::make_unique<Overlay>(Overlay{object, items, {}}));
  overlay_of_[items][object] = overlays_.back().get();
  return *overlays_.back();
}

PyObject* Capture::pinned(PyObject* object) {
  if (auto original = shadow_original_.find(object); original != shadow_original_.end()) object = original->second;
  if (is_tensor(object)) {
    auto input = inputs_.find(session->value_of(THPVariable_Unpack(object)));
    if (input == inputs_.end() || fake_of_.at(input->second.real.get()).get() != object) return object;
    guards.identity(input->second.source, input->second.real.get());
    return input->second.real.get();
  }
  const Source* source = source_of(object);
  if (source && source->kind != SourceKind::Const) guards.identity(source, object);
  return object;
}

PyObject* Capture::original_key(PyObject* key) {
  if (is_scalar(key) || is_identity_constant(key)) return key;
  if (PyTuple_CheckExact(key) && !is_outside(key)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
      PyObject* item = PyTuple_GET_ITEM(key, i);
      if (!is_scalar(item) && !is_identity_constant(item)) return nullptr;
    }
    return key;
  }
  if (is_tensor(key)) {
    if (!fake::is_fake(THPVariable_Unpack(key))) return nullptr;
    auto input = inputs_.find(session->value_of(THPVariable_Unpack(key)));
    if (input == inputs_.end() || fake_of_.at(input->second.real.get()).get() != key) return nullptr;
    guards.identity(input->second.source, input->second.real.get());
    return input->second.real.get();
  }
  if (!is_identity_key(key) && !PyFunction_Check(key)) return nullptr;
  const Source* source = source_of(key);
  if (source && source->kind != SourceKind::Const) guards.identity(source, key);
  return key;
}

Ref Capture::dict_lookup(PyObject* dict, PyObject* key) {
  if (auto original = shadow_original_.find(dict); original != shadow_original_.end()) dict = original->second;
  if (shadows_.count(dict)) {
    return Ref::borrow(PyDict_GetItemWithError(shadows_.at(dict).object.get(), key));
  }
  const Source* source = source_of(dict);
  if (!source) {
    PyObject* value = PyDict_GetItemWithError(dict, key);
    if (!value && PyErr_Occurred()) throw PythonError{};
    return Ref::borrow(value);
  }
  if (Overlay* written = find_overlay(dict, true)) {
    if (auto* entry = written->find(key)) return entry->second;
  }
  PyObject* original = original_key(key);
  if (!original) {
    side_exit(BreakReason::OpaqueObject, source->name() + " is looked up with a key of type " + Py_TYPE(key)->tp_name);
  }
  if (!is_outside(key) && is_identity_key(key)) return {};  // made here: it can't be in there
  key = original;
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (!value && PyErr_Occurred()) throw PythonError{};
  const Source* item = sources.dict_item(source, key);
  if (!value) {
    guards.absent(item);
    return {};
  }
  return wrap(value, item);
}

namespace {

/// Closing the generator runs code: it is suspended where a handler waits. (From 3.12 on, one that turns StopIteration
/// into RuntimeError waits everywhere.)
bool has_finally(PyObject* generator) {
  Frame* suspended = generator_frame(generator);
  if (!suspended || !generator_is_started(generator)) return false;
  const CodeInfo& info = decode(frame_code(suspended));
  const Handler* handler = info.handler_of(std::max(frame_next_instr(suspended, info) - 1, 0));
  return handler && info.instrs[handler->target].op != Op::CALL_INTRINSIC_1;
}

}  // namespace

void Capture::check_last_words(PyObject* dropped) {
  if (!dropped || !(is_outside(dropped) || (!root_.raw.empty() && !is_scalar(dropped)))) return;
  PyTypeObject* type = Py_TYPE(dropped);
  bool speaks = PyGen_CheckExact(dropped) ? has_finally(dropped) : type->tp_finalize || type->tp_del;
  if (PyType_SUPPORTS_WEAKREFS(type)) {
    for (auto* reference = *reinterpret_cast<PyWeakReference**>(PyObject_GET_WEAKREFS_LISTPTR(dropped)); reference;
         reference = reference->wr_next) {
      speaks |= reference->wr_callback != nullptr;
    }
  }
  if (speaks) side_exit(BreakReason::Finalizer, std::string("an object of type ") + type->tp_name + " is dropped");
}

void Capture::store_entry(PyObject* dict, PyObject* key, PyObject* value) {
  if (auto original = shadow_original_.find(dict); original != shadow_original_.end()) dict = original->second;
  if (is_scalar(key)) check_last_words(PyDict_GetItemWithError(dict, key));
  if (value) {
    overlay(dict, true).set(key, value);
  } else {
    PyObject* original = original_key(key);
    const int in_original = original ? PyDict_Contains(dict, original) : 0;
    if (in_original < 0) throw PythonError{};
    overlay(dict, true).erase(key, in_original != 0);
  }
  auto shadow = shadows_.find(dict);
  if (shadow == shadows_.end()) return;
  PyObject* contents = shadow->second.object.get();
  if ((value ? PyObject_SetItem(contents, key, value) : PyObject_DelItem(contents, key)) < 0) throw PythonError{};
}

bool Capture::is_identical(PyObject* a, PyObject* b) {
  if ((is_unknown_number(a) || is_unknown_number(b)) && guards::is_number(number_now(a)) &&
      guards::is_number(number_now(b))) {
    const Ref known_a = known(a), known_b = known(b);
    return known_a.get() == known_b.get();
  }
  auto original = [this](PyObject* object) {
    auto found = shadow_original_.find(object);
    return found == shadow_original_.end() ? object : found->second;
  };
  a = original(a);
  b = original(b);
  if (a == b) return true;
  const Source* source_a = source_of(a);
  const Source* source_b = source_of(b);
  if (source_a && source_b && !(source_a->kind == SourceKind::Const && source_b->kind == SourceKind::Const)) {
    guards.distinct(source_a, source_b);
  }
  return false;
}

namespace {

/// The cell whose contents `contents` is.
const Source* cell_of(guards::SourceTable& sources, const Source* contents) {
  return contents->kind == SourceKind::Closure ? sources.closure_cell(contents->base, contents->index) : contents->base;
}

}  // namespace

void Capture::adopt_cell(PyObject* cell) {
  if (is_outside(cell)) return;
  const Source* source = cell_of(sources, cell_contents_.at(cell));
  guards.type(source, &PyCell_Type);
  outside_[cell] = source;
  keep(Ref::borrow(cell));
}

void Capture::guard_distinct() {
  std::set<PyTypeObject*> written;
  for (const auto& overlay : overlays_) written.insert(Py_TYPE(overlay->object));
  if (written.count(&PyCell_Type)) {
    for (const auto& [contents, other] : cell_aliases_) guards.alias(other, cell_of(sources, contents));
    std::vector<const Source*> cells;
    for (const auto& [cell, contents] : cell_contents_) cells.push_back(cell_of(sources, contents));
    std::sort(cells.begin(), cells.end(), [](const Source* a, const Source* b) { return a->id < b->id; });
    guards.distinct(cells);
  }
  if (!tails_.empty()) written.insert(&PyList_Type);
  for (const auto& [original, shadow] : shadows_) {
    if (shadow.dirty) written.insert(Py_TYPE(original));
  }
  std::map<PyTypeObject*, std::vector<const Source*>> places;  // guards keep objects of different types apart
  for (const auto& [value, input] : inputs_) {
    if (!input.number && !input.array) places[Py_TYPE(input.real.get())].push_back(input.source);
  }
  for (const auto& [object, source] : outside_) {
    const bool container = is_builtin_container(object);
    const bool instance = !container && source->kind != SourceKind::Const &&
                          (PyFunction_Check(object) || PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE));
    if (instance || (container && written.count(Py_TYPE(object)))) places[Py_TYPE(object)].push_back(source);
  }
  const auto older = [](const Source* a, const Source* b) { return a->id < b->id; };
  std::vector<std::vector<const Source*>> groups;
  for (auto& [type, group] : places) {
    std::sort(group.begin(), group.end(), older);
    groups.push_back(std::move(group));
  }
  std::sort(groups.begin(), groups.end(), [&](const auto& a, const auto& b) { return older(a.front(), b.front()); });
  for (const auto& group : groups) guards.distinct(group);
}

}  // namespace magneto::capture
