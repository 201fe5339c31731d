// Attribute access, as the interpreted program sees it.
//
// This is CPython's attribute protocol done step by step, so that every read of an outside object leaves a guard on
// exactly what was read (type attribute, instance dict entry, absence of one) and Python-level hooks (properties,
// `__getattr__`, `__getattribute__`, descriptors) are interpreted like any other function.
#include "capture/world/attributes.h"

#include <Python.h>

#include <algorithm>
#include <optional>

#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/numbers/numbers.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "guards/thread_state.h"
#include "python/abi/dicts.h"
#include "python/abi/errors.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/imported.h"

namespace magneto::capture {

using guards::Source;

PyObject* torch_module_class() {
  static constinit Imported type("torch.nn.modules.module", "Module");
  return type.get();
}

PyObject* class_entry(PyObject* type, const char* name) {
  return PyDict_GetItemString(type_dict(reinterpret_cast<PyTypeObject*>(type)), name);
}

PyObject* instance_dict_of(PyObject* object) {
  Ref dict = Ref::steal(PyObject_GenericGetDict(object, nullptr));
  if (!dict) {
    PyErr_Clear();
    return nullptr;
  }
  return dict.get();  // the object keeps it alive
}

bool has_instance_dict(PyTypeObject* type) {
  return type->tp_dictoffset != 0 || PyType_HasFeature(type, Py_TPFLAGS_MANAGED_DICT);
}

namespace {

/// A Python-level `__getattr__` for `owner`.
Ref call_attribute_hook(Capture& capture, PyObject* hook, PyObject* owner, PyObject* name) {
  NonResumable scope(capture);
  return capture.calls.call(capture.world.wrap(hook, capture.sources.constant(hook)).get(), {owner, name});
}

/// The current error is an AttributeError that a hook may still turn into a value; clears it. Else goes on raising.
void expect_attribute_error(PyObject* hook) {
  if (!hook || !PyErr_ExceptionMatches(PyExc_AttributeError)) throw PythonError{};
  PyErr_Clear();
}

/// torch.ops makes a namespace, an operator and its overloads when they are first asked for, and keeps them: that is
/// nothing that a program does.
void make_operator(PyObject* owner, PyObject* name) {
  static constinit Imported all("torch._ops", "_Ops"), some("torch._ops", "_OpNamespace"),
      one("torch._ops", "OpOverloadPacket");
  PyTypeObject* type = Py_TYPE(owner);
  if (type != all.type() && type != some.type() && type != one.type()) return;
  PyObject* made = instance_dict_of(owner);
  if (PyDict_GetItemWithError(made, name) || lookup_in_type(type, name)) return;
  if (!Ref::steal(PyObject_GetAttr(owner, name))) PyErr_Clear();  // what is wrong, the program's own look-up says
}

}  // namespace

PyObject* Attributes::type_lookup(PyTypeObject* type, PyObject* name) {
  if (c.overlays.classes_written) {
    if (const auto* written = c.overlays.find_class_write(type, name)) return written->second.get();
  }
  PyObject* found = lookup_in_type(type, name);
  if (c.calls.classes.is_class(type)) return lookup_in_made_class(type, name);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) c.guards.type_lookup(type, name, found);
  return found;
}

/// What the class itself has, each run gives it anew: guarded is what it would find behind that.
PyObject* Attributes::lookup_in_made_class(PyTypeObject* type, PyObject* name) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    PyObject* found = PyDict_GetItemWithError(type_dict(base), name);
    if (PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE) && !c.calls.classes.is_class(base)) {
      c.guards.type_lookup(base, name, lookup_in_type(base, name));
    }
    if (found) return found;
  }
  return nullptr;
}

PyObject* Attributes::type_lookup(PyTypeObject* type, const char* name) {
  Ref text = checked(PyUnicode_InternFromString(name));
  return type_lookup(type, text.get());
}

Ref Attributes::load_attr(PyObject* owner, PyObject* name, bool* unbound) {
  Ref value = lookup_attr(owner, name, unbound);
  if (value) return value;
  if (PyType_Check(owner)) {
    PyErr_Format(PyExc_AttributeError, "type object '%.50s' has no attribute '%U'",
                 reinterpret_cast<PyTypeObject*>(owner)->tp_name, name);
  } else if (PyModule_Check(owner)) {
    PyErr_Format(PyExc_AttributeError, "module '%.50s' has no attribute '%U'", PyModule_GetName(owner), name);
  } else {
    PyObject* of = PyMethod_Check(owner) ? PyMethod_GET_FUNCTION(owner) : owner;
    PyObject* sample = sample_of(of);
    PyObject* descriptor = lookup_in_type(Py_TYPE(sample), name);
    if (descriptor && Py_TYPE(descriptor) == &PyMemberDescr_Type) {
      set_empty_slot_error(sample, name);
    } else {
      PyErr_Format(PyExc_AttributeError, "'%.50s' object has no attribute '%U'", Py_TYPE(sample)->tp_name, name);
    }
  }
  throw PythonError{};
}

namespace {

bool is_class(PyObject* object) { return PyType_Check(object); }
bool is_module(PyObject* object) { return PyModule_Check(object); }
bool is_super(PyObject* object) { return Py_TYPE(object) == &PySuper_Type; }
bool is_thread_local(PyObject* object) { return guards::thread_dict(object) != nullptr; }
bool is_any(PyObject*) { return true; }

}  // namespace

/// The first that matches reads. A write that it does not do (`write` null or giving false) goes to the next.
constexpr Attributes::OwnerKind Attributes::kOwners[] = {
    {"a class", is_class, &Attributes::read_of_class, &Attributes::write_of_class},
    {"a module", is_module, &Attributes::read_of_module, &Attributes::write_of_module},
    {"a tensor", is_tensor, &Attributes::read_of_tensor, &Attributes::write_of_tensor},
    {"an array", is_array, &Attributes::read_of_array, nullptr},
    {"a storage", is_storage, &Attributes::read_of_storage, nullptr},
    {"super()", is_super, &Attributes::read_of_super, nullptr},
    {"a threading.local", is_thread_local, &Attributes::read_of_thread_local, &Attributes::write_of_thread_local},
    {"any other object", is_any, &Attributes::read_of_object, &Attributes::write_of_object},
};

Ref Attributes::lookup_attr(PyObject* owner, PyObject* name, bool* unbound) {
  if (unbound) *unbound = false;
  make_operator(owner, name);
  const auto* kind = std::ranges::find_if(kOwners, [&](const OwnerKind& each) { return each.is(owner); });
  return (this->*kind->read)(owner, name, unbound);
}

void Attributes::store_attr(PyObject* owner, PyObject* name, PyObject* value) {
  PyObject* setter = type_lookup(Py_TYPE(owner), value ? MAGNETO_STR("__setattr__") : MAGNETO_STR("__delattr__"));
  for (const OwnerKind& kind : kOwners) {
    if (kind.write && kind.is(owner) && (this->*kind.write)(owner, name, value, setter)) return;
  }
}

Ref Attributes::read_of_array(PyObject* owner, PyObject* name, bool* unbound) {
  return c.numpy.attribute(owner, name, unbound);
}

/// Its size alone can be had while capturing.
Ref Attributes::read_of_storage(PyObject* owner, PyObject* name, bool*) {
  PyObject* method = PyDict_GetItemWithError(type_dict(Py_TYPE(owner)), name);
  if (!method || Py_TYPE(method) != &PyMethodDescr_Type) return c.numbers.known(owner);
  return checked(Py_TYPE(method)->tp_descr_get(method, owner, reinterpret_cast<PyObject*>(Py_TYPE(owner))));
}

/// A `__getattribute__` in Python. An AttributeError from it is followed by __getattr__, as in slot_tp_getattr_hook.
Ref Attributes::read_by_getattribute(PyObject* getattribute, PyObject* owner, PyObject* name) {
  PyObject* hook = type_lookup(Py_TYPE(owner), MAGNETO_STR("__getattr__"));
  try {
    NonResumable scope(c);
    return c.calls.call(c.world.wrap(getattribute, c.sources.constant(getattribute)).get(), {owner, name});
  } catch (const PythonError&) {
    expect_attribute_error(hook);
  }
  return call_attribute_hook(c, hook, owner, name);
}

Ref Attributes::read_of_object(PyObject* owner, PyObject* name, bool* unbound) {
  PyTypeObject* type = Py_TYPE(owner);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    PyObject* getattribute = type_lookup(type, MAGNETO_STR("__getattribute__"));
    if (getattribute && PyFunction_Check(getattribute)) return read_by_getattribute(getattribute, owner, name);
  }
  if (c.world.is_opaque(owner) && has_own_getattr(type)) {
    c.side_exit(BreakReason::OpaqueObject,
                std::string("an attribute of an object of type ") + type->tp_name + " is read, which has its own ways");
  }
  PyObject* hook = nullptr;
  // An AttributeError of a property leads to the hook: the property can't be cut off from here.
  std::optional<NonResumable> scope;
  if (c.frame && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && lookup_in_type(type, MAGNETO_STR("__getattr__"))) {
    scope.emplace(c);
  }
  try {
    if (Ref value = lookup_instance_attr(owner, name, unbound)) return value;
    if (PyMethod_Check(owner)) {  // what it lacks itself is its function's
      const Source* source = c.world.source_of(owner);
      PyObject* function = PyMethod_GET_FUNCTION(owner);
      return lookup_attr(source ? c.world.wrap(function, c.sources.bound_function(source)).get() : function, name);
    }
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return {};
    hook = type_lookup(type, MAGNETO_STR("__getattr__"));
  } catch (const PythonError&) {  // of a property or another descriptor
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) hook = type_lookup(type, MAGNETO_STR("__getattr__"));
    expect_attribute_error(hook);
  }
  if (!hook) return {};
  PyObject* const module_class = torch_module_class();
  static PyObject* const module_hook = class_entry(module_class, "__getattr__");
  if (hook == module_hook) return module_getattr(owner, name);
  return call_attribute_hook(c, hook, owner, name);
}

Ref Attributes::instance_dict_entry(PyObject* owner, PyObject* name) {
  const Source* source = c.world.source_of(owner);
  if (source) {
    if (Overlay* written = c.overlays.find(owner, false)) {
      if (auto* entry = written->find(name)) return entry->second;
    }
  }
  PyObject* dict = instance_dict_of(owner);
  if (!dict) return {};
  if (c.containers.is_written(dict)) return c.overlays.dict_lookup(dict, name);
  PyObject* value = PyDict_GetItemWithError(dict, name);
  if (!value && PyErr_Occurred()) throw PythonError{};
  if (!source) return Ref::borrow(value);
  const Source* place = c.sources.attr(source, name);
  if (!value) {
    c.guards.absent(place);
    return {};
  }
  return c.world.wrap(value, place);
}

Ref Attributes::lookup_instance_attr(PyObject* owner, PyObject* name, bool* unbound) {
  PyTypeObject* type = Py_TYPE(owner);
  const Source* source = c.world.source_of(owner);
  PyObject* descriptor = type_lookup(type, name);
  guard_protocol(descriptor);
  if (!source && name == MAGNETO_STR("__context__") && PyExceptionInstance_Check(owner)) {
    // Raised while the segment itself handled nothing: the context is what the caller handles, if it does.
    Ref context = Ref::steal(PyException_GetContext(owner));
    if (!context || context.get() == c.start_handled()) {
      c.side_exit(BreakReason::OpaqueObject, "the __context__ of an exception");
    }
  }
  if (source && is_bound_builtin(owner)) {  // its texts depend on the receiver's type
    Ref receiver = c.world.receiver_of(owner);
    if (name == MAGNETO_STR("__self__")) return receiver;
  }
  if (descriptor && Py_TYPE(descriptor)->tp_descr_set) return read_field({owner, name, source, descriptor});
  if (has_instance_dict(type)) {
    if (Ref value = instance_dict_entry(owner, name)) return value;
  }
  if (!descriptor) return {};
  return bind(descriptor, owner, type, unbound);
}

Ref Attributes::read_of_class(PyObject* object, PyObject* name, bool*) {
  auto* owner = reinterpret_cast<PyTypeObject*>(object);
  PyTypeObject* meta = Py_TYPE(owner);
  PyObject* on_meta = type_lookup(meta, name);
  if (on_meta && Py_TYPE(on_meta)->tp_descr_set && Py_TYPE(on_meta)->tp_descr_get) {
    guard_protocol(on_meta);
    if (Py_TYPE(on_meta) == &PyProperty_Type || is_python_class(Py_TYPE(on_meta))) {
      return bind(on_meta, object, meta, nullptr);
    }
    if (on_meta == lookup_in_type(&PyType_Type, name)) {
      if (Ref fact = class_fact(owner, name)) return fact;
    }
    Ref value = Ref::steal(Py_TYPE(on_meta)->tp_descr_get(on_meta, object, reinterpret_cast<PyObject*>(meta)));
    if (!value) {
      if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw PythonError{};
      PyErr_Clear();
      return {};
    }
    c.world.keep(value);
    if (c.calls.classes.is_class(owner)) return value;
    return c.world.wrap(value.get(), c.sources.constant(value.get()));
  }
  if (PyObject* found = type_lookup(owner, name)) return bind(found, nullptr, owner, nullptr);
  if (on_meta) return bind(on_meta, object, meta, nullptr);
  PyObject* hook = type_lookup(meta, MAGNETO_STR("__getattr__"));
  return hook ? call_attribute_hook(c, hook, object, name) : Ref();
}

Ref Attributes::read_of_module(PyObject* owner, PyObject* name, bool*) {
  PyObject* dict = PyModule_GetDict(owner);
  c.world.wrap(dict, c.sources.constant(dict));
  if (Py_TYPE(owner) != &PyModule_Type) {  // lazy modules and the like: descriptors on the subclass come first
    PyObject* descriptor = type_lookup(Py_TYPE(owner), name);
    if (descriptor && Py_TYPE(descriptor)->tp_descr_set) return bind(descriptor, owner, Py_TYPE(owner), nullptr);
  }
  if (Ref value = c.overlays.dict_lookup(dict, name)) return value;
  if (PyObject* descriptor = lookup_in_type(Py_TYPE(owner), name)) {
    return bind(descriptor, owner, Py_TYPE(owner), nullptr);
  }
  // A module's __getattr__ (PEP 562, or of a subclass such as a lazy module).
  NonResumable scope(c);
  if (Ref hook = c.overlays.dict_lookup(dict, MAGNETO_STR("__getattr__"))) return c.calls.call(hook.get(), {name});
  if (Py_TYPE(owner) == &PyModule_Type) return {};
  PyObject* method = type_lookup(Py_TYPE(owner), MAGNETO_STR("__getattr__"));
  return method ? c.calls.call(c.world.wrap(method, c.sources.constant(method)).get(), {owner, name}) : Ref();
}

/// Its attributes are the entries of a dict that this thread has for it.
Ref Attributes::read_of_thread_local(PyObject* owner, PyObject* name, bool* unbound) {
  const Source* source = c.world.source_of(owner);
  if (!source) return read_of_object(owner, name, unbound);
  Ref dict = c.world.wrap(guards::thread_dict(owner), c.sources.thread_dict(source));
  if (PyUnicode_CompareWithASCIIString(name, "__dict__") == 0) return dict;
  PyObject* descriptor = lookup_in_type(Py_TYPE(owner), name);
  if (descriptor && Py_TYPE(descriptor)->tp_descr_set) return bind(descriptor, owner, Py_TYPE(owner), nullptr);
  if (Ref value = c.overlays.dict_lookup(dict.get(), name)) return value;
  return descriptor ? bind(descriptor, owner, Py_TYPE(owner), nullptr) : Ref();
}

Ref Attributes::read_of_super(PyObject* owner, PyObject* name, bool*) {
  const Source* source = c.world.source_of(owner);
  const auto member = [&](PyObject* member_name) {
    Ref value = checked(PyObject_GetAttr(owner, member_name));
    if (!source) return value;
    return c.world.wrap(value.get(),
                        c.sources.slot(source, PyDict_GetItemWithError(type_dict(&PySuper_Type), member_name)));
  };
  Ref start = member(MAGNETO_STR("__thisclass__"));
  Ref self = member(MAGNETO_STR("__self__"));
  Ref self_class = member(MAGNETO_STR("__self_class__"));
  auto* type = reinterpret_cast<PyTypeObject*>(self_class.get());
  const bool for_class = self.get() == self_class.get();
  PyObject* mro = type->tp_mro;
  Py_ssize_t i = 0;
  while (i < PyTuple_GET_SIZE(mro) && PyTuple_GET_ITEM(mro, i) != start.get()) ++i;
  for (++i; i < PyTuple_GET_SIZE(mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i));
    PyObject* found = PyDict_GetItemWithError(type_dict(base), name);
    if (!found) {
      if (PyErr_Occurred()) throw PythonError{};
      type_lookup(base, name);  // notices when this one gets the attribute
      continue;
    }
    type_lookup(base, name);
    return bind(found, for_class ? nullptr : self.get(), type, nullptr);  // the receiver is not `owner`: bound at once
  }
  return {};
}

Ref Attributes::module_getattr(PyObject* owner, PyObject* name) {
  for (PyObject* table_name : {MAGNETO_STR("_parameters"), MAGNETO_STR("_buffers"), MAGNETO_STR("_modules")}) {
    Ref table = instance_dict_entry(owner, table_name);
    if (!table) continue;
    if (Ref value = c.overlays.dict_lookup(table.get(), name)) return value;
  }
  return {};
}

}  // namespace magneto::capture
